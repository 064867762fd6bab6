"""A real broker whose share groups begin fast, and what its clients do with a queue: topic "t", group "g",
dead letters in "dlq.g". A module that imports this one is skipped where confluent-kafka is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker_clients import confluent_kafka, create, produce
from kafka_broker import Broker
from kafka_tools import classpath
from waiting import PATIENCE, until
from wire_client import WireClient

from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code

TOPIC, GROUP, LETTERS = "t", "g", "dlq.g"
MORE = """\
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
transaction.state.log.num.partitions=1
group.share.min.record.lock.duration.ms=1000
"""
HAS_SHARE_CONSUMER = hasattr(confluent_kafka, "ShareConsumer")
LETTER_SETTINGS = "errors.deadletterqueue.auto.create.topics.enable=true\n"
"""Kafka 4.4 knows this setting, 4.3 does not."""
QUEUE = {"share.auto.offset.reset": "earliest"}
WITH_LETTERS = {
    **QUEUE,
    "errors.deadletterqueue.topic.name": LETTERS,
    "errors.deadletterqueue.copy.record.enable": "true",
}
GROUP_RESOURCE, SET = 32, 0
Counts = dict[int, int]
"""Delivery counts by offset."""


def share_broker(directory: Path, more: str = LETTER_SETTINGS, jars: str = "") -> Broker:
    """Return a broker of 4.4, or of the class path `jars`, that has not run yet."""
    return Broker(jars or classpath(), directory, more=MORE + more)


def fill(address: str, settings: Mapping[str, str] = WITH_LETTERS, records: int = 10) -> None:
    """Create the topic and its records, all in one batch, and set the group's settings."""
    create(address, TOPIC)
    produce(address, TOPIC, [b"%d" % number for number in range(records)])
    set_group(address, settings)


def set_group(address: str, settings: Mapping[str, str], group: str = GROUP) -> None:
    """Set settings of a group."""
    kind = structs("IncrementalAlterConfigsRequest")
    changes = [
        kind.AlterableConfig(name=name, config_operation=SET, value=value) for name, value in settings.items()
    ]
    change = kind.AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name=group, configs=changes)
    with connected(address) as wire:
        (answer,) = wire.ask("IncrementalAlterConfigs", 1, resources=[change], validate_only=False).responses
    assert answer.error_code == Code.NONE, answer


def connected(address: str) -> WireClient:
    """Return a connection to a server."""
    host, _, port = address.partition(":")
    return WireClient(host, int(port))


def end(broker: Broker, kills: bool) -> None:
    """Kill the broker, or let it stop cleanly."""
    process = broker.process
    assert process is not None
    process.kill() if kills else process.terminate()
    process.wait(PATIENCE)


class Worker:
    """A share consumer of librdkafka, which acknowledges explicitly. It holds what it does not acknowledge
    until its end.
    """

    def __init__(self, address: str, group: str = GROUP) -> None:
        settings = {"bootstrap.servers": address, "group.id": group, "log_level": 0}
        self._consumer = confluent_kafka.ShareConsumer({**settings, "share.acknowledgement.mode": "explicit"})
        self._consumer.subscribe([TOPIC])
        self._held: dict[int, Any] = {}

    def take(self, count: int) -> Counts:
        """Return the delivery counts of at least so many records."""
        found: list[Any] = []

        def enough() -> bool:
            found.extend(self._consumer.poll(0.5))
            return len(found) >= count

        until(enough)
        assert [each.error() for each in found] == [None] * len(found)
        self._held |= {each.offset(): each for each in found}
        return {each.offset(): each.delivery_count() for each in found}

    def more(self, seconds: float) -> Counts:
        """Return the delivery counts of what comes within so many seconds."""
        return {each.offset(): each.delivery_count() for each in self._consumer.poll(seconds)}

    def acknowledge(self, types: Mapping[int, int]) -> None:
        """Acknowledge records by offset and type: 1 accepts, 2 releases, 3 rejects."""
        for offset, kind in types.items():
            self._consumer.acknowledge(self._held.pop(offset), confluent_kafka.AcknowledgeType(kind))
        answers = self._consumer.commit_sync(PATIENCE)
        assert list(answers.values()) == [None], answers

    def close(self) -> None:
        self._consumer.close()


def letters(address: str, count: int) -> list[tuple[str, bytes]]:
    """Return the offset and the value of dead letters, once there are so many."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "l", "log_level": 0})
    try:
        consumer.assign([confluent_kafka.TopicPartition(LETTERS, 0, 0)])
        found = consumer.consume(count, PATIENCE)
    finally:
        consumer.close()
    return [(dict(each.headers())["__dlq.errors.offset"].decode(), each.value()) for each in found]


def first_offset(address: str, topic: str) -> int:
    """Return the start of a topic's partition 0."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "l", "log_level": 0})
    try:
        low, _ = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), PATIENCE)
    finally:
        consumer.close()
    return int(low)
