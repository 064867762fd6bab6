"""Promise: clients of a server read messages of magic 0 and 1 as record batches, at the same offsets, from
any offset on, and by time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest
from confluent_kafka import TopicPartition
from drawn_sets import EACH_KIND
from message_sets import Message
from stores import write_segment

import segstore

SECONDS = 60.0
ALL = EACH_KIND.messages
TYPES = {confluent_kafka.TIMESTAMP_CREATE_TIME: False, confluent_kafka.TIMESTAMP_LOG_APPEND_TIME: True}


@pytest.fixture
def address(store_dir: Path) -> Iterator[str]:
    write_segment(store_dir / "t-0", 0, EACH_KIND.data)
    with segstore.open(store_dir) as store, segstore.serve(store, port=0) as server:
        yield server.bootstrap_servers


def read(address: str, first: int, **settings: Any) -> list[Message]:
    """Return what librdkafka reads from an offset on."""
    config = {"bootstrap.servers": address, "group.id": "g", "enable.partition.eof": True, **settings}
    consumer = confluent_kafka.Consumer(config)
    consumer.assign([TopicPartition("t", 0, first)])
    found: list[Message] = []
    try:
        while True:
            message = consumer.poll(SECONDS)
            assert message is not None
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                return found
            kind, stamp = message.timestamp()
            appended = TYPES.get(kind, False)
            found.append(Message(message.offset(), stamp, message.key(), message.value(), appended))
    finally:
        consumer.close()


def expected(first: int) -> list[Message]:
    return [m for m in ALL if m.offset >= first]


def test_librdkafka_reads_all(address: str) -> None:
    """... also some bytes at a time, and from within a wrapper."""
    found = read(address, 0, **{"check.crcs": True})
    assert [m._replace(timestamp=max(m.timestamp, -1)) for m in found] == expected(0)
    assert read(address, ALL[7].offset, **{"fetch.message.max.bytes": 100}) == expected(ALL[7].offset)


def test_kafka_python_reads_all_and_finds_times(address: str) -> None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=address, consumer_timeout_ms=2000)
    partition = kafka.TopicPartition("t", 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    found: list[Any] = []
    while len(found) < len(ALL):
        more = list(consumer)
        assert more
        found += more
    assert [(r.offset, r.key, r.value) for r in found] == [(m.offset, m.key, m.value) for m in ALL]
    stamp = ALL[-6].timestamp
    first = next(m for m in ALL if m.timestamp >= stamp)
    assert consumer.offsets_for_times({partition: stamp})[partition].offset == first.offset
    consumer.close()
