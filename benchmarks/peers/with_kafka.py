"""A real Apache Kafka broker in a process of its own, on the loopback address, through confluent-kafka.

On disk: one topic of one partition a log, in the broker's directory. Threads: librdkafka's own; the follower
is another consumer. The broker's CPU is not this process'.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from .peer import AbsentError, Log, Peer
from .records import Batch, Row

sys.path.extend(str(room) for room in sorted((Path(__file__).parents[2] / "tests" / "support").iterdir()))
import kafka_broker
import kafka_tools

JAVA = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
WAIT = 30.0
AT_ONCE = 10_000
PRODUCER = {"acks": "all", "batch.size": 1_000_000, "queue.buffering.max.messages": 1_000_000}
CONSUMER = {"enable.auto.commit": False, "auto.offset.reset": "earliest", "group.id": "peers"}
CONSUMER |= {
    "queued.min.messages": 1_000_000,
    "fetch.wait.max.ms": 1,  # a fetch at the end is not waited for when an offset is asked for
    "fetch.error.backoff.ms": 1,
    "fetch.queue.backoff.ms": 1,
    "check.crcs": True,
}
ONE_AT_A_TIME = {"queued.min.messages": 1, "max.partition.fetch.bytes": 1 << 16}
FOLLOWER = {"fetch.wait.max.ms": 500}

SETTINGS = {
    "page cache": "the broker's default: flush.messages and flush.ms not set",
    "synced": "topic flush.messages=1: fsync before a produce request is answered",
    "follower": "waits: the broker answers a fetch when there is a record",
    "other": f"one broker, one partition, loopback; {' '.join(JAVA)}; acks=all, batch.size=1000000, "
    "linger.ms=5 (tail follow: 0), check.crcs=true, no compression, "
    "no delivery callbacks (what was delivered is read back)",
}


class KafkaLog(Log):
    def __init__(self, address: str, topic: str, synced: bool) -> None:
        self._address, self._topic = {"bootstrap.servers": address}, topic
        admin = AdminClient(self._address)
        config = {"flush.messages": "1"} if synced else {}
        admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(WAIT)
        self._clients: list[Any] = []
        self._producer = self._lingering(5)
        self._scanner = confluent_kafka.Consumer({**self._address, **CONSUMER})
        self._reader = confluent_kafka.Consumer({**self._address, **CONSUMER, **ONE_AT_A_TIME})
        self._clients += [self._scanner, self._reader]

    def _lingering(self, ms: int) -> confluent_kafka.Producer:
        """A producer that is connected. `flush` does not linger."""
        made = confluent_kafka.Producer({**self._address, **PRODUCER, "linger.ms": ms})
        made.list_topics(self._topic, timeout=WAIT)
        self._clients.append(made)
        return made

    def _at(self, offset: int = 0) -> confluent_kafka.TopicPartition:
        return confluent_kafka.TopicPartition(self._topic, 0, offset)

    def append(self, batch: Batch) -> None:
        produce, topic = self._producer.produce, self._topic
        for stamp, value in zip(batch.timestamps, batch.values, strict=True):
            produce(topic, value, partition=0, timestamp=stamp)

    def acknowledge(self) -> None:
        assert self._producer.flush(WAIT) == 0

    def rows(self) -> Iterator[Row]:
        """By one consumer for all scans: the first, which is not timed, has it connected."""
        _, left = self._scanner.get_watermark_offsets(self._at(), timeout=WAIT)
        self._scanner.assign([self._at()])
        until = time.monotonic() + WAIT
        while left:
            assert time.monotonic() < until, f"{left} records have not come"
            for message in self._scanner.consume(min(AT_ONCE, left), timeout=0.05):
                yield _row(message)
                left -= 1
        self._scanner.unassign()

    def read(self, offset: int) -> Row:
        self._reader.assign([self._at(offset)])
        message = self._reader.poll(WAIT)
        assert message.offset() == offset
        return _row(message)

    def follow(self) -> Iterator[list[Row]]:
        """From now on nothing lingers."""
        self._producer = self._lingering(0)
        return followed(json.dumps(self._address), self._topic)

    def apart(self) -> tuple[str, ...]:
        """From now on nothing lingers."""
        self._producer = self._lingering(0)
        return "with_kafka:followed", json.dumps(self._address), self._topic

    def close(self) -> None:
        for client in self._clients:
            client.close()


def followed(address: str, topic: str) -> Iterator[list[Row]]:
    with closing(confluent_kafka.Consumer({**json.loads(address), **CONSUMER, **FOLLOWER})) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        consumer.poll(0.2)
        yield []
        while True:
            found = consumer.poll(0.1)
            yield [_row(found)] if found else []


def _row(message: Any) -> Row:
    assert message.error() is None, message.error()
    return message.timestamp()[1], message.value()


def peer(session: ExitStack, directory: Path) -> Peer:
    """Starts the broker, which stops with the session."""
    if why := kafka_tools.why_not():
        raise AbsentError(why)
    try:
        broker = kafka_broker.Broker(kafka_tools.classpath(), directory / "broker", JAVA)
    except RuntimeError as error:
        raise AbsentError(str(error).partition("\n")[0]) from error
    address = session.enter_context(broker.running())
    versions = {
        "Apache Kafka": kafka_tools.VERSION,
        "confluent-kafka": confluent_kafka.__version__,
        "librdkafka": confluent_kafka.libversion()[0],
    }
    names = map("log-{}".format, count())
    return Peer("Kafka", versions, SETTINGS, lambda _, synced: KafkaLog(address, next(names), synced))
