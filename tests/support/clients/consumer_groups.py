"""Consumer groups (KIP-848) by themselves: members are only heartbeats, and the test sets the clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from group_members import Member, info
from groups import Monotonic, Unsynced, coordinator

import segstore
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

SESSION_MS = 45_000
AT = {TopicPartition("t", 0): OffsetAndMetadata(1)}


@pytest.fixture
def clock() -> Monotonic:
    return Monotonic()


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    config = {"offsets.topic.num.partitions": 1, "group.consumer.max.size": 3}
    with segstore.open(store_dir, config=config, files=Unsynced()) as store:
        store.create_topic("t", 6)
        yield store


@pytest.fixture
def found(store: segstore.Store, clock: Monotonic) -> GroupCoordinator:
    return coordinator(store, clock)


def settle(store: segstore.Store, *members: Member) -> list[set[int]]:
    """Have the members send heartbeats until nothing changes; meanwhile no partition has two owners."""
    for _ in range(10):
        before = [(member.epoch, member.given) for member in members]
        for member in members:
            member.beat()
            every = [number for each in members for number in each.has]
            assert len(every) == len(set(every))
        if [(member.epoch, member.given) for member in members] == before:
            break
    assert info(store).state.value == "Stable"
    return [member.has for member in members]


def joined(store: segstore.Store, *member_ids: str, **said: Any) -> list[Member]:
    members = [Member(store, member_id, **said).join() for member_id in member_ids]
    settle(store, *members)
    return members


def metadata(member: Member, epoch: int | None = None) -> ConsumerGroupMetadata:
    return ConsumerGroupMetadata("g", member.epoch if epoch is None else epoch, member.member_id)
