"""Promise: librdkafka's consumers with `group.protocol=consumer` share a group, by names and by regular
expressions, as static members, and across a restart of the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from waiting import until

import segstore
from segstore.coordinator.group.consumers.group import ConsumerGroupInfo
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.shared import shared

PARTITIONS = 6
CONFIG = {"group.consumer.heartbeat.interval.ms": 100, "offsets.topic.num.partitions": 1}
Member = confluent_kafka.Consumer


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, config=CONFIG) as store:
        store.create_topic("t", PARTITIONS)
        yield store


@contextmanager
def member(server: segstore.Server, *topics: str, **settings: Any) -> Iterator[Member]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": server.bootstrap_servers,
            "group.id": "g",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 500,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    consumer.subscribe(list(topics or ("t",)))
    with closing(consumer):
        yield consumer


def has(consumer: Any) -> set[tuple[str, int]]:
    return {(each.topic, each.partition) for each in consumer.assignment()}


def settle(*members: Any, topic: str = "t", count: int = PARTITIONS) -> list[set[tuple[str, int]]]:
    """Poll all in turn until each partition has one owner, and each member a fair part."""
    found: list[set[tuple[str, int]]] = []

    def settled() -> bool:
        for each in members:
            each.poll(0.02)
        found[:] = map(has, members)
        whole = sorted(n for held in found for n in held) == [(topic, n) for n in range(count)]
        return whole and max(map(len, found)) - min(map(len, found)) <= 1

    until(settled)
    return found


def info(store: segstore.Store) -> ConsumerGroupInfo:
    found = shared(store, GroupCoordinator).describe_consumers("g")
    assert found is not None
    return found


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_come_and_go(server: segstore.Server, store: segstore.Store, assignor: str) -> None:
    settings = {"group_remote_assignor": assignor}
    with member(server, **settings) as first:
        settle(first)
        with ExitStack() as stack:
            others = [stack.enter_context(member(server, **settings)) for _ in range(2)]
            settle(first, *others)
            assert info(store).assignor == assignor
        settle(first)


class InProcess:
    """A consumer of the process as `settle` polls it."""

    def __init__(self, consumer: segstore.Consumer) -> None:
        self.assignment = consumer.assignment
        self.poll = lambda seconds: consumer.poll(seconds * 1000)


@pytest.mark.parametrize("old", ["process", "wire"])
def test_consumers_in_the_process_and_on_the_wire_share_a_group(
    server: segstore.Server, store: segstore.Store, old: str
) -> None:
    """From the classic protocol to KIP-848 one by one, wherever the members are, and back."""
    in_process: Any = {"group_id": "g", "auto_offset_reset": "earliest"}
    cooperative: Any = {**in_process, "partition_assignment_strategy": ["cooperative-sticky"]}
    on_wire = {"group_protocol": "classic", "partition_assignment_strategy": "cooperative-sticky"}
    with ExitStack() as classic:
        if old == "process":
            before = InProcess(classic.enter_context(segstore.Consumer(store, "t", **cooperative)))
        else:
            before = classic.enter_context(member(server, **on_wire))
        settle(before)
        with segstore.Consumer(store, "t", **in_process, group_protocol="consumer") as consumer:
            settle(before, InProcess(consumer))
            assert {each.is_classic for each in info(store).members} == {True, False}
            with member(server) as wire:
                settle(before, InProcess(consumer), wire)
                classic.close()
                settle(InProcess(consumer), wire)
                assert {each.is_classic for each in info(store).members} == {False}
            settle(InProcess(consumer))
            after = InProcess(classic.enter_context(segstore.Consumer(store, "t", **cooperative)))
            settle(InProcess(consumer), after)
        settle(after)
        assert shared(store, GroupCoordinator).describe_consumers("g") is None


def test_what_is_consumed_is_committed(server: segstore.Server, store: segstore.Store) -> None:
    for number in range(PARTITIONS):
        store.partition("t", number).append_batch([b"x"] * 3)
    with member(server) as first, member(server) as second:
        read = 0

        def all_read() -> bool:
            nonlocal read
            read += sum(message is not None for message in (first.poll(0.02), second.poll(0.02)))
            return read >= 3 * PARTITIONS

        until(all_read)
    with segstore.Consumer(store, group_id="g") as reader:
        offsets = [reader.committed(segstore.TopicPartition("t", n)) for n in range(PARTITIONS)]
    assert offsets == [3] * PARTITIONS


def test_a_static_member_comes_back_to_its_partitions(server: segstore.Server, store: segstore.Store) -> None:
    with member(server) as first:
        with member(server, group_instance_id="i") as second:
            before = settle(first, second)[1]
        epoch = info(store).epoch
        with member(server, group_instance_id="i") as second:
            assert settle(first, second)[1] == before
            assert info(store).epoch == epoch


def test_members_subscribe_by_a_regular_expression(server: segstore.Server, store: segstore.Store) -> None:
    with member(server, "^n[0-9]+") as first, member(server, "^n[0-9]+") as second:
        store.create_topic("n1", 2)
        settle(first, second, topic="n1", count=2)
        store.create_topic("n2", 2)
        wanted = {(topic, number) for topic in ("n1", "n2") for number in range(2)}

        def settled() -> bool:
            for each in (first, second):
                each.poll(0.02)
            return has(first) | has(second) == wanted and len(has(first)) == len(has(second))

        until(settled)


def test_a_group_survives_a_restart_of_the_server(store_dir: Path) -> None:
    """Members keep their ids, epochs and partitions; nobody is assigned anew."""
    with segstore.open(store_dir, config=CONFIG) as store:
        store.create_topic("t", PARTITIONS)
        server = segstore.serve(store, port=0)
        port = server.port
        stack = ExitStack()
        first, second = (stack.enter_context(member(server)) for _ in range(2))
        before = settle(first, second)
        told = info(store)
    with (
        segstore.open(store_dir, config=CONFIG) as store,
        segstore.serve(store, port=port) as server,
        stack,
    ):
        assert info(store) == told
        store.partition("t", 0).append_batch([b"x"])

        def got() -> bool:
            found = [each.poll(0.05) for each in (first, second)]
            return any(message is not None and message.error() is None for message in found)

        until(got)
        assert settle(first, second) == before
        assert info(store).epoch == told.epoch
