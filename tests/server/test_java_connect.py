"""Promise: Kafka Connect copies a file into a topic and the topic into a file, also if its workers and the
server are killed; and so it does with a broker of Kafka's.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import connect
import kafka_tools
import pytest
from connect import INTERNAL
from killed_servers import SERVERS, KilledServer, committed, ends, server
from waiting import PATIENCE, until

pytestmark = [
    pytest.mark.judge("Kafka Connect"),
    pytest.mark.skipif(bool(kafka_tools.why_not()), reason=str(kafka_tools.why_not())),
    pytest.mark.parametrize("name", SERVERS),
    pytest.mark.kind("Java's clients"),
]
TOPIC = "lines"
CLEANED_SOON = {"log.cleaner.backoff.ms": 500}
LENGTH = 128
LINES, BATCH = 6000, 1024 // LENGTH
"""The source reads 1,024 characters, takes a batch of lines of them, each a transaction, and the other lines
when it next reads: at the end of the file they would stay where they are.
"""
OFFSETS = "connect-offsets"
COMMITTED = {"consumer.override.isolation.level": "read_committed"}
COPIED = 300.0
"""Seconds: after a broker's death sessions and transactions have to time out, in a minute each."""


@pytest.fixture
def at(name: str, tmp_path: Path, store_dir: Path) -> Iterator[KilledServer]:
    directory = store_dir if name == "segstore" else tmp_path / "kafka"
    with server(name, directory, CLEANED_SOON) as found:
        yield found
    if name == "segstore":
        partitions = [path for path in store_dir.iterdir() if path.name.startswith((TOPIC, "connect-"))]
        assert kafka_tools.judge(*partitions).errors == []


class Files:
    """The file that is copied, and the copy."""

    def __init__(self, directory: Path) -> None:
        self.source, self.copy = directory / "source.txt", directory / "copy.txt"
        self.lines: list[str] = []
        self.write(0)

    def write(self, count: int) -> None:
        """Write more lines at once, each LENGTH bytes long."""
        numbers = range(len(self.lines), len(self.lines) + count)
        more = [f"line {number} ".ljust(LENGTH - 1, ".") for number in numbers]
        with open(self.source, "ab", buffering=0) as file:
            file.write("".join(f"{line}\n" for line in more).encode())
        self.lines += more

    def copied(self) -> list[str]:
        return self.copy.read_text().splitlines() if self.copy.exists() else []

    def first_copies(self) -> list[str]:
        """Return the copied lines without repeats, which a sink makes if it could not commit offsets."""
        return list(dict.fromkeys(self.copied()))

    def all_copied(self) -> bool:
        return len(self.first_copies()) >= len(self.lines)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def values(at: KilledServer) -> list[str]:
    (records,) = committed(at.address, TOPIC, 1)
    return [value.decode() for _, value in records if value is not None]


def test_a_standalone_worker(at: KilledServer, files: Files, tmp_path: Path) -> None:
    """It goes on where its file of offsets and the committed offsets say, and over a kill of the server."""
    connectors = {"source": connect.source(files.source, TOPIC), "sink": connect.sink(files.copy, TOPIC)}
    standalone = connect.Standalone(tmp_path / "worker", at.address, connectors)
    for _ in range(2):
        files.write(500)
        with standalone.started() as worker:
            worker.until(files.all_copied)
            worker.end()
        assert files.copied() == files.lines
    with standalone.started() as worker:
        for _ in range(2):
            at.kill()
            files.write(500)
            at.start()
            worker.until(files.all_copied)
        worker.end()
    assert files.first_copies() == files.lines
    assert values(at) == files.lines


class Cluster:
    """Two workers, and the connectors that copy."""

    def __init__(self, directory: Path, at: KilledServer, files: Files) -> None:
        self.at, self.files = at, files
        self.workers = [connect.Worker(directory / name, at.address) for name in ("first", "second")]

    def create(self) -> None:
        every = {"exactly.once.support": "required", "batch.size": BATCH}
        self.workers[0].create("source", connect.source(self.files.source, TOPIC, **every))
        self.workers[0].create("sink", connect.sink(self.files.copy, TOPIC, **COMMITTED))

    def runner(self) -> tuple[connect.Worker, connect.Worker]:
        """Return the worker that runs the source, and the other one."""
        first, second = self.workers
        (found,) = first.program.until(lambda: first.runners("source"))
        return (first, second) if found == first.id else (second, first)

    def write_midway(self) -> None:
        """Write more lines, and wait until a part of them is in the topic."""
        (before,) = ends(self.at.address, TOPIC, 1)
        self.files.write(LINES)
        self._until(lambda: ends(self.at.address, TOPIC, 1)[0] >= before + LINES // 8)
        assert ends(self.at.address, TOPIC, 1)[0] < before + LINES

    def _until(self, look: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Wait until `look` returns true, while the source goes on."""

        def found() -> bool:
            return look() or bool(self.workers[0].runners("source") and look())

        until(found, seconds)

    def await_copies(self) -> None:
        self._until(self.files.all_copied, COPIED)
        assert self.files.first_copies() == self.files.lines
        assert values(self.at) == self.files.lines


@pytest.fixture
def cluster(at: KilledServer, files: Files, tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path, at, files)
    try:
        yield found
    finally:
        for worker in found.workers:
            worker.program.kill()


def test_a_cluster_copies_exactly_once(cluster: Cluster) -> None:
    """All lines are in the topic once, though a worker stands still until another one has its task, and goes
    on then; though a worker is killed; and though the server is.
    """
    cluster.create()
    stopped, heir = cluster.runner()
    cluster.write_midway()
    stopped.program.process.send_signal(signal.SIGSTOP)
    heir.program.until(lambda: heir.runners("source") == [heir.id])
    stopped.program.process.send_signal(signal.SIGCONT)
    cluster.await_copies()

    killed, heir = cluster.runner()
    cluster.write_midway()
    killed.program.kill()
    heir.program.until(lambda: heir.runners("source") == [heir.id])
    killed.restart()
    cluster.await_copies()

    cluster.write_midway()
    cluster.at.kill()
    cluster.at.start()
    cluster.await_copies()


def test_a_cluster_goes_on_behind_a_compaction(cluster: Cluster) -> None:
    """The server keeps the latest offset of each source, of records that were written in transactions."""
    cluster.create()
    cluster.files.write(LINES)
    cluster.await_copies()
    for worker in cluster.workers:
        worker.program.end()
    at = cluster.at.address
    until(lambda: 0 < sum(map(len, committed(at, OFFSETS, INTERNAL[OFFSETS]))) < LINES // BATCH // 2)
    cluster.at.kill()
    cluster.at.start()
    for worker in cluster.workers:
        worker.restart()
    cluster.files.write(LINES)
    cluster.await_copies()
