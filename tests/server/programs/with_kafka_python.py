"""The scenario of tests/support/clients/scenario.py with kafka-python."""

from __future__ import annotations

import contextlib

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.structs import OffsetAndMetadata
from kafka_python import member
from scenario import ABORTED, COUNT, RETENTION_MS, VALUES, Told
from waiting import until

NAME = "kafka-python"
EVENTS = [TopicPartition("events", number) for number in (0, 1)]


def run(servers: str) -> Told:
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
        topics, retention = _topics(admin)
        _produce(servers)
        together, alone, read = _group(servers)
        _transactions(servers)
        committed = _committed(servers)
        groups = [each["group_id"] for each in admin.list_groups()]
        (told,) = admin.list_group_offsets(["copiers"]).values()
    return Told(
        topics, retention, together, alone, read, committed, groups, [told[at].offset for at in EVENTS]
    )


def _topics(admin: KafkaAdminClient) -> tuple[list[str], str]:
    kept = {"retention.ms": str(RETENTION_MS)}
    created = [
        NewTopic("events", 2, 1, topic_configs=kept),
        NewTopic("results", 2, 1),
        NewTopic("gone", 1, 1),
    ]
    admin.create_topics(created)
    admin.create_partitions({"gone": NewPartitions(3)})
    (gone,) = admin.describe_topics(["gone"])
    assert len(gone["partitions"]) == 3
    told = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, "events")])
    retention = told["topic"]["events"]["retention.ms"]["value"]
    admin.delete_topics(["gone"])
    return [name for name in admin.list_topics() if not name.startswith("__")], str(retention)


def _produce(servers: str) -> None:
    with contextlib.closing(KafkaProducer(bootstrap_servers=servers, compression_type="gzip")) as producer:
        sent = [
            producer.send("events", value, b"k%d" % n, partition=n % 2, headers=[("from", NAME.encode())])
            for n, value in enumerate(VALUES)
        ]
        producer.flush()
        assert [each.get().offset for each in sent] == [n // 2 for n in range(COUNT)]


def _group(servers: str) -> tuple[list[list[int]], list[int], list[str]]:
    stays, goes = (
        member(
            "events", bootstrap_servers=servers, group_id="readers", auto_offset_reset="earliest",
            enable_auto_commit=False, heartbeat_interval_ms=200,
        )
        for _ in range(2)
    )  # fmt: skip
    read: dict[TopicPartition, dict[int, str]] = {at: {} for at in EVENTS}

    def poll(*members: KafkaConsumer) -> list[list[int]]:
        """Have the members work; a record that comes to one member and then to the other counts once."""
        for each in members:
            for at, records in each.poll(500).items():
                read[at].update({record.offset: record.value.decode() for record in records})
        return [sorted(at.partition for at in each.assignment()) for each in members]

    def shared() -> list[list[int]]:
        found = poll(stays, goes)
        return found if [len(each) for each in found] == [1, 1] else []

    together = until(shared)
    goes.close()
    until(lambda: len(poll(stays)[0]) == 2)
    until(lambda: poll(stays) and sum(map(len, read.values())) == COUNT)
    stays.commit({at: OffsetAndMetadata(COUNT // 2, "", -1) for at in EVENTS})
    (alone,) = poll(stays)
    stays.close()
    return together, alone, [value for part in read.values() for value in part.values()]


def _transactions(servers: str) -> None:
    with contextlib.closing(KafkaProducer(bootstrap_servers=servers, transactional_id="copier")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for value in ABORTED:
            producer.send("results", value)
        producer.flush()
        producer.abort_transaction()
        producer.begin_transaction()
        for n, value in enumerate(VALUES):
            producer.send("results", value.upper(), partition=n % 2)
        offsets = {at: OffsetAndMetadata(COUNT // 2, "", -1) for at in EVENTS}
        producer.send_offsets_to_transaction(offsets, "copiers")
        producer.commit_transaction()


def _committed(servers: str) -> list[str]:
    parts = [TopicPartition("results", number) for number in (0, 1)]
    found: list[str] = []
    with contextlib.closing(
        KafkaConsumer(
            bootstrap_servers=servers, auto_offset_reset="earliest", isolation_level="read_committed"
        )
    ) as reader:
        reader.assign(parts)
        ends = reader.end_offsets(parts)
        while any(reader.position(part) < ends[part] for part in parts):
            found += [record.value.decode() for records in reader.poll(500).values() for record in records]
    return found
