"""Promise: programs of other clients work unchanged: they create topics, produce, consume in groups, commit,
run transactions and administer; what they wrote is what a program in the process reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_python import member

import segstore

pytestmark = pytest.mark.kind("clients on the wire")

SECONDS = 30.0
VALUES = [b"value %d" % n for n in range(500)]


def _until(poll: Callable[[], list[bytes]], count: int) -> list[bytes]:
    """Poll until so many values came."""
    found: list[bytes] = []
    end = time.monotonic() + SECONDS
    while len(found) < count and time.monotonic() < end:
        found += poll()
    return found


def _confluent_consumer(server: Any, **settings: Any) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": server.bootstrap_servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )


def _polled(consumer: confluent_kafka.Consumer) -> Callable[[], list[bytes]]:
    def poll() -> list[bytes]:
        messages = consumer.consume(1000, 0.2)
        assert not [message.error() for message in messages if message.error()]
        return [message.value() for message in messages]

    return poll


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_produces_and_consumes(server: Any, store: Any, codec: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
    admin.create_topics([NewTopic("t", 2)])["t"].result(SECONDS)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": server.bootstrap_servers, "compression.type": codec, "enable.idempotence": True}
    )
    failed: list[Any] = []
    for n, value in enumerate(VALUES):
        producer.produce(
            "t", value, key=b"%d" % n, headers=[("h", b"1")], partition=n % 2,
            callback=lambda error, _: failed.append(error) if error else None,
        )  # fmt: skip
    assert producer.flush(SECONDS) == 0
    assert not failed
    mine = [record for part in (0, 1) for record in store.partition("t", part).read(0)]
    assert sorted(record.value for record in mine) == sorted(VALUES)
    assert {tuple(record.headers) for record in mine} == {(("h", b"1"),)}
    consumer = _confluent_consumer(server)
    consumer.subscribe(["t"])
    assert sorted(_until(_polled(consumer), len(VALUES))) == sorted(VALUES)
    consumer.commit(asynchronous=False)
    consumer.close()
    again = _confluent_consumer(server)
    committed = again.committed([confluent_kafka.TopicPartition("t", n) for n in (0, 1)], SECONDS)
    again.close()
    assert [each.offset for each in committed] == [len(VALUES) // 2] * 2


def test_kafka_python_produces_and_consumes(server: Any, store: Any) -> None:
    store.create_topic("t", 2)
    producer = kafka.KafkaProducer(bootstrap_servers=server.bootstrap_servers, acks="all")
    for n, value in enumerate(VALUES):
        producer.send("t", value, partition=n % 2)
    producer.flush(SECONDS)
    producer.close()
    consumer = member(
        "t", bootstrap_servers=server.bootstrap_servers, group_id="g", auto_offset_reset="earliest"
    )

    def poll() -> list[bytes]:
        return [record.value for part in consumer.poll(200).values() for record in part]

    assert sorted(_until(poll, len(VALUES))) == sorted(VALUES)
    consumer.commit()
    consumer.close()
    with segstore.Consumer(store, "t", group_id="g") as mine:
        found = {mine.committed(segstore.TopicPartition("t", n)) for n in (0, 1)}
    assert found == {len(VALUES) // 2}


def test_transactions_of_librdkafka(server: Any, store: Any) -> None:
    """What was aborted is not seen, offsets are committed with the records."""
    store.create_topic("in")
    store.create_topic("out")
    store.partition("in", 0).append_batch(VALUES[:10])
    consumer = _confluent_consumer(server)
    consumer.subscribe(["in"])
    assert len(_until(_polled(consumer), 10)) == 10
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": server.bootstrap_servers, "transactional.id": "x"}
    )
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce("out", b"aborted")
    assert producer.flush(SECONDS) == 0
    producer.abort_transaction(SECONDS)
    producer.begin_transaction()
    producer.produce("out", b"committed")
    producer.send_offsets_to_transaction(
        consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), SECONDS
    )
    producer.commit_transaction(SECONDS)
    consumer.close()
    reader = _confluent_consumer(server, group_id="other", isolation_level="read_committed")
    reader.subscribe(["out"])
    assert _until(_polled(reader), 1) == [b"committed"]
    reader.close()
    again = _confluent_consumer(server)
    [committed] = again.committed([confluent_kafka.TopicPartition("in", 0)], SECONDS)
    again.close()
    assert committed.offset == 10


def test_a_group_of_both_sides(server: Any, store: Any) -> None:
    """A consumer in the process and one on the wire share the partitions."""
    store.create_topic("t", 4)
    outside = _confluent_consumer(server, partition_assignment_strategy="range")
    outside.subscribe(["t"])
    with segstore.Consumer(
        store, "t", group_id="g", auto_offset_reset="earliest", partition_assignment_strategy=["range"]
    ) as inside:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            inside.poll(50)
            outside.poll(0.05)
            if len(inside.assignment()) == 2 and len(outside.assignment()) == 2:
                break
        parts = {each.partition for each in inside.assignment()}
        assert parts | {each.partition for each in outside.assignment()} == {0, 1, 2, 3}
        assert len(parts) == 2
    outside.close()
