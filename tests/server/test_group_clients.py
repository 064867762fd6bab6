"""Promise: consumers of different libraries, and consumers in the process, share the partitions of one
group, by whatever way they rebalance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from kafka_python import member
from waiting import PATIENCE, until
from wire_client import WireClient

import segstore
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.shared import shared
from segstore.protocol.codec import structs
from segstore.server.apis import Api

pytestmark = pytest.mark.kind("clients on the wire")

SECONDS = 10.0
"""What a request may take. Members get `PATIENCE` to settle: each rebalance waits for the slowest of them."""
PARTITIONS = 6
Poll = Callable[[], None]
Has = Callable[[], set[int]]
Member = tuple[Poll, Has]
"""What has a member work for a moment, and what tells its partitions."""


@pytest.fixture
def topic(store: segstore.Store) -> str:
    store.create_topic("t", PARTITIONS)
    return "t"


@contextmanager
def librdkafka(server: Any, strategy: str, **settings: Any) -> Iterator[Member]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": server.bootstrap_servers,
            "group.id": "g",
            "partition.assignment.strategy": strategy,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 200,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    consumer.subscribe(["t"])
    with closing(consumer):
        yield lambda: consumer.poll(0.02), lambda: {each.partition for each in consumer.assignment()}


@contextmanager
def kafka_python(server: Any) -> Iterator[Member]:
    settings = {"bootstrap_servers": server.bootstrap_servers, "heartbeat_interval_ms": 200}
    with closing(member("t", group_id="g", **settings)) as consumer:
        # It drops a SyncGroup's answer that comes as the timeout of its poll ends, and joins anew.
        yield lambda: consumer.poll(500), lambda: {each.partition for each in consumer.assignment()}


@contextmanager
def ours(store: segstore.Store, strategy: str) -> Iterator[Member]:
    with segstore.Consumer(store, "t", group_id="g", partition_assignment_strategy=[strategy]) as consumer:
        yield lambda: consumer.poll(20), lambda: {each.partition for each in consumer.assignment()}


def settle(*members: Member) -> list[set[int]]:
    """Poll all in turn until each partition has one owner, and each member a fair part."""
    share = PARTITIONS // len(members)
    end = time.monotonic() + PATIENCE
    found: list[set[int]] = []
    while time.monotonic() < end:
        for poll, _ in members:
            poll()
        found = [has() for _, has in members]
        whole = sorted(n for each in found for n in each) == list(range(PARTITIONS))
        if whole and all(len(each) == share for each in found):
            return found
    raise AssertionError(f"the members have {found}")


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_come_and_go(server: Any, store: segstore.Store, topic: str, strategy: str) -> None:
    with librdkafka(server, strategy) as first:
        settle(first)
        with librdkafka(server, strategy) as second, ours(store, strategy) as third:
            settle(first, second, third)
        settle(first)


def test_three_libraries_are_in_one_group(server: Any, store: segstore.Store, topic: str) -> None:
    with ExitStack() as stack:
        members = [
            stack.enter_context(librdkafka(server, "range")),
            stack.enter_context(kafka_python(server)),
            stack.enter_context(ours(store, "range")),
        ]
        settle(*members)


def test_a_static_member_that_is_started_anew_has_its_partitions_at_once(
    server: Any, store: segstore.Store, topic: str
) -> None:
    groups = shared(store, GroupCoordinator)
    with librdkafka(server, "range", group_instance_id="a") as first:
        with librdkafka(server, "range", group_instance_id="b") as second:
            before = settle(first, second)[1]
        generation = groups.generation("g")
        with librdkafka(server, "range", group_instance_id="b") as second:
            assert settle(first, second)[1] == before
            assert groups.generation("g") == generation


def test_a_client_administers_the_groups_of_both_sides(
    server: Any, store: segstore.Store, topic: str
) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
    with librdkafka(server, "range") as first, ours(store, "range") as second:
        settle(first, second)
        listed = admin.list_consumer_groups(request_timeout=SECONDS).result(SECONDS)
        assert [(each.group_id, each.state.name) for each in listed.valid] == [("g", "STABLE")]
        told = admin.describe_consumer_groups(["g"], request_timeout=SECONDS)["g"].result(SECONDS)
        has = [{at.partition for at in member.assignment.topic_partitions} for member in told.members]
        assert sorted(map(sorted, has)) == sorted(map(sorted, (first[1](), second[1]())))
        assert {member.host for member in told.members} == {"localhost", "/127.0.0.1"}
    wanted = confluent_kafka.ConsumerGroupTopicPartitions("g", [confluent_kafka.TopicPartition("t", 1, 7)])
    admin.alter_consumer_group_offsets([wanted], request_timeout=SECONDS)["g"].result(SECONDS)
    with segstore.Consumer(store, group_id="g") as reader:
        assert reader.committed(segstore.TopicPartition("t", 1)) == 7
    admin.delete_consumer_groups(["g"], request_timeout=SECONDS)["g"].result(SECONDS)
    assert admin.list_consumer_groups(request_timeout=SECONDS).result(SECONDS).valid == []


def test_a_member_whose_connection_is_cut_stays_until_its_session_ends(
    server: Any, store: segstore.Store, topic: str
) -> None:
    """Its join is parked then, and answered to nobody; the group goes on with it."""
    kind = structs("JoinGroupRequest").JoinGroupRequestProtocol

    def joining(member_id: str = "") -> dict[str, Any]:
        return {
            "group_id": "g",
            "session_timeout_ms": 6000,
            "rebalance_timeout_ms": 60_000,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocols": [kind(name="range", metadata=b"")],
        }

    groups = shared(store, GroupCoordinator)
    with WireClient(server.host, server.port) as stays:
        mine = stays.ask(Api.JOIN_GROUP, 3, **joining())
        with WireClient(server.host, server.port) as goes:
            goes.send(Api.JOIN_GROUP, 3, **joining())
            until(lambda: len(groups.members("g")) == 2)
        again = stays.ask(Api.JOIN_GROUP, 3, **joining(mine.member_id))
        assert again.generation_id == 2
        assert len(again.members) == 2
        assert len(groups.members("g")) == 2
