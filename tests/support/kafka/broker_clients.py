"""What librdkafka does with a broker's topic: creates it, writes it and reads it. A module that imports this
one is skipped where confluent-kafka is missing.
"""

from __future__ import annotations

import pytest
from waiting import PATIENCE

confluent_kafka = pytest.importorskip(
    "confluent_kafka", reason="Kafka's broker needs a client with every codec"
)
admin = pytest.importorskip("confluent_kafka.admin")


def consume(
    address: str, topic: str, wanted: int, isolation: str = "read_uncommitted"
) -> list[tuple[object, ...]]:
    """The first `wanted` records, as librdkafka gives them, CRCs checked."""
    settings = {"bootstrap.servers": address, "group.id": "g", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(settings | {"check.crcs": True, "isolation.level": isolation})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[tuple[object, ...]] = []
    while len(found) < wanted and (messages := consumer.consume(wanted - len(found), PATIENCE)):
        for m in messages:
            assert m.error() is None, m.error()
            found.append((m.offset(), m.timestamp()[1], m.key(), m.value(), m.headers() or []))
    consumer.close()
    return found


def produce(address: str, topic: str, values: list[bytes]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    for v in values:
        producer.produce(topic, v, partition=0)
    assert producer.flush(PATIENCE) == 0


def create(address: str, topic: str) -> None:
    client = admin.AdminClient({"bootstrap.servers": address})
    for future in client.create_topics([admin.NewTopic(topic, 1, 1)]).values():
        future.result(PATIENCE)
