"""The scenario of tests/support/clients/scenario.py with aiokafka."""

from __future__ import annotations

import asyncio

from aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    TopicPartition,
)
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from scenario import ABORTED, COUNT, RETENTION_MS, VALUES, Told
from waiting import PATIENCE

NAME = "aiokafka"
EVENTS = [TopicPartition("events", number) for number in (0, 1)]


def run(servers: str) -> Told:
    return asyncio.run(asyncio.wait_for(_run(servers), PATIENCE))


async def _run(servers: str) -> Told:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        topics, retention = await _topics(admin)
        await _produce(servers)
        together, alone, read = await _group(servers)
        await _transactions(servers)
        committed = await _committed(servers)
        groups = [name for name, _ in await admin.list_consumer_groups()]
        offsets = await admin.list_consumer_group_offsets("copiers")
    finally:
        await admin.close()
    return Told(
        topics, retention, together, alone, read, committed, groups, [offsets[at].offset for at in EVENTS]
    )


async def _topics(admin: AIOKafkaAdminClient) -> tuple[list[str], str]:
    kept = {"retention.ms": str(RETENTION_MS)}
    created = [
        NewTopic("events", 2, 1, topic_configs=kept),
        NewTopic("results", 2, 1),
        NewTopic("gone", 1, 1),
    ]
    await admin.create_topics(created)
    await admin.create_partitions({"gone": NewPartitions(3)})
    (told,) = await admin.describe_topics(["gone"])
    assert len(told["partitions"]) == 3
    (response,) = await admin.describe_configs(
        [ConfigResource(ConfigResourceType.TOPIC, "events", {"retention.ms": None})]
    )
    (resource,) = response.resources
    (setting,) = resource[4]
    await admin.delete_topics(["gone"])
    return await admin.list_topics(), setting[1]


async def _produce(servers: str) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=servers, enable_idempotence=True, compression_type="gzip"
    ) as producer:
        sent = [
            await producer.send(
                "events", value, b"k%d" % n, partition=n % 2, headers=[("from", NAME.encode())]
            )
            for n, value in enumerate(VALUES)
        ]
        await asyncio.gather(*sent)


class _Settled(ConsumerRebalanceListener):
    """Wakes whoever waits for an assignment of so many partitions."""

    def __init__(self) -> None:
        self.changed = asyncio.Condition()

    async def on_partitions_revoked(self, revoked: object) -> None:
        pass

    async def on_partitions_assigned(self, assigned: object) -> None:
        async with self.changed:
            self.changed.notify_all()


async def _group(servers: str) -> tuple[list[list[int]], list[int], list[str]]:
    settled = _Settled()
    members = [
        AIOKafkaConsumer(
            bootstrap_servers=servers, group_id="readers", auto_offset_reset="earliest",
            enable_auto_commit=False, heartbeat_interval_ms=200,
        )
        for _ in range(2)
    ]  # fmt: skip

    def has() -> list[list[int]]:
        return [sorted(at.partition for at in member.assignment()) for member in members]

    for member in members:
        member.subscribe(["events"], listener=settled)
        await member.start()
    stays, goes = members
    async with settled.changed:
        await settled.changed.wait_for(lambda: [len(each) for each in has()] == [1, 1])
    together = has()
    await goes.stop()
    async with settled.changed:
        await settled.changed.wait_for(lambda: len(has()[0]) == 2)
    read: list[str] = []
    while len(read) < COUNT:
        polled = await stays.getmany(timeout_ms=500)
        read += [record.value.decode() for records in polled.values() for record in records]
    await stays.commit()
    alone = has()[0]
    await stays.stop()
    return together, alone, read


async def _transactions(servers: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=servers, transactional_id="copier") as producer:
        await producer.begin_transaction()
        await asyncio.gather(*[await producer.send("results", value) for value in ABORTED])
        await producer.abort_transaction()
        async with producer.transaction():
            for n, value in enumerate(VALUES):
                await producer.send("results", value.upper(), partition=n % 2)
            await producer.send_offsets_to_transaction(dict.fromkeys(EVENTS, COUNT // 2), "copiers")


async def _committed(servers: str) -> list[str]:
    parts = [TopicPartition("results", number) for number in (0, 1)]
    async with AIOKafkaConsumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as reader:
        reader.assign(parts)
        ends = await reader.end_offsets(parts)
        found: list[str] = []
        while any([await reader.position(part) < ends[part] for part in parts]):
            polled = await reader.getmany(timeout_ms=200)
            found += [record.value.decode() for records in polled.values() for record in records]
    return found
