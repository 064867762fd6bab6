"""Servers that a test kills, and starts anew at the same address: segstore's command, and a broker of
Kafka's.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import kafka_tools
from cli import start_program
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from kafka_broker import Broker, free_port
from waiting import PATIENCE

BROKER = """\
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
"""
SERVERS = ("segstore", "Kafka 4.4")


class KilledServer:
    """A server at an address; `run` starts it, gives its process, and stops it cleanly."""

    def __init__(
        self, address: str, run: Callable[[], AbstractContextManager[subprocess.Popen[bytes]]]
    ) -> None:
        self.address, self._run = address, run
        self._stack = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = self._stack.enter_context(self._run())

    def stop(self) -> None:
        self._stack.close()

    def kill(self) -> None:
        """Send SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE)
        self._stack.close()


@contextmanager
def server(name: str, directory: Path, settings: Mapping[str, object]) -> Iterator[KilledServer]:
    """Run a server of SERVERS whose store or logs are `directory`, with Kafka's names of settings."""
    made = _segstore if name == "segstore" else _kafka
    found = made(directory, {"group.initial.rebalance.delay.ms": 0, **settings})
    found.start()
    try:
        yield found
    finally:
        found.stop()


def _segstore(directory: Path, settings: Mapping[str, object]) -> KilledServer:
    address = f"127.0.0.1:{free_port()}"
    options = [option for name, value in settings.items() for option in ("--set", f"{name}={value}")]

    @contextmanager
    def run() -> Iterator[subprocess.Popen[bytes]]:
        with open(directory.with_suffix(".log"), "ab") as log:
            process = start_program("serve", "-s", directory, "--listen", address, *options, stderr=log)
        with process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline(), directory.with_suffix(".log").read_text()[-4000:]
                yield process
                process.terminate()
                process.wait(PATIENCE)
            finally:
                process.kill()

    return KilledServer(address, run)


def _kafka(directory: Path, settings: Mapping[str, object]) -> KilledServer:
    more = BROKER + "".join(f"{name}={value}\n" for name, value in settings.items())
    broker = Broker(kafka_tools.classpath(), directory, more=more)

    @contextmanager
    def run() -> Iterator[subprocess.Popen[bytes]]:
        with broker.running():
            assert broker.process is not None
            yield broker.process

    return KilledServer(broker.address, run)


def ends(address: str, topic: str, partitions: int) -> list[int]:
    """Return the last stable offsets of a topic; 0 while there is no such topic, and no leader."""
    with _reader(address) as reader:
        return [_end(reader, TopicPartition(topic, number)) for number in range(partitions)]


def committed(address: str, topic: str, partitions: int) -> list[list[tuple[bytes | None, bytes | None]]]:
    """Return keys and values of each partition, of committed transactions, up to the last stable offset."""
    with _reader(address) as reader:
        return [list(_records(reader, topic, number)) for number in range(partitions)]


def _records(reader: Consumer, topic: str, number: int) -> Iterator[tuple[bytes | None, bytes | None]]:
    reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING)])
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for message in reader.consume(10_000, 0.1):
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return
            assert error is None, error
            yield message.key(), message.value()
    raise AssertionError(f"{topic}-{number} was not read to its end")


def _end(reader: Consumer, at: TopicPartition) -> int:
    try:
        return int(reader.get_watermark_offsets(at, timeout=PATIENCE)[1])
    except KafkaException:
        return 0


@contextmanager
def _reader(address: str) -> Iterator[Consumer]:
    config = {
        "bootstrap.servers": address,
        "group.id": "judge",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "allow.auto.create.topics": False,
        "enable.partition.eof": True,
    }
    reader = Consumer(config)
    try:
        yield reader
    finally:
        reader.close()
