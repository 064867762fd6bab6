"""Helpers for consumer groups: a clock that tests set, and members that are polled in turn until the group is
stable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import segstore
from segstore.client.consumer import Consumer, ConsumerRebalanceListener, ConsumerRecord
from segstore.coordinator.group.classic.member import ClassicGroupState
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import TopicPartition
from segstore.files import Files, Handle

COOPERATIVE = {"partition_assignment_strategy": ["cooperative-sticky"]}
CONSUMER = {"group_protocol": "consumer"}
KINDS: dict[str, dict[str, Any]] = {"eager": {}, "cooperative": COOPERATIVE, "consumer": CONSUMER}
SESSION_MS, MAX_POLL_MS, HEARTBEAT_MS = 10_000, 30_000, 1_000


class Monotonic:
    """A clock in milliseconds that stands still until a test sets it."""

    def __init__(self) -> None:
        self.now = 1e6

    def __call__(self) -> float:
        return self.now


class Told(ConsumerRebalanceListener):
    """A listener that notes what it is told, and may do something then."""

    def __init__(self, do: Any = None) -> None:
        self.told: list[tuple[str, set[int]]] = []
        self.do = do or (lambda how, partitions: None)

    def _tell(self, how: str, partitions: Any) -> None:
        self.told.append((how, {each.partition for each in partitions}))
        self.do(how, partitions)

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._tell("revoked", revoked)

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._tell("assigned", assigned)

    def on_partitions_lost(self, lost: Any) -> None:
        self._tell("lost", lost)


class Unsynced(Files):
    """Files that sync nothing, since tests without power cuts need not wait for the disk."""

    def sync(self, handle: Handle) -> None:
        """Do nothing."""

    def sync_dir(self, path: Any) -> None:
        """Do nothing."""


def coordinator(store: segstore.Store, clock: Monotonic | None = None) -> GroupCoordinator:
    """Return the store's group coordinator, which takes its time from `clock`, if one is given."""
    found = shared(store, GroupCoordinator)
    if clock is not None:
        found._clock = clock
    return found


def member_ids(store: segstore.Store, group: str = "g") -> list[str]:
    """Return the ids of the group's members, of either protocol."""
    found = coordinator(store).describe_consumers(group)
    return [each.member_id for each in (found.members if found else coordinator(store).members(group))]


def is_empty(store: segstore.Store, group: str = "g") -> bool:
    return coordinator(store).state(group).value == ClassicGroupState.EMPTY.value


def offsets(store: segstore.Store) -> GroupOffsets:
    return shared(store, GroupOffsets)


def member(store: segstore.Store, *topics: str, group: str = "g", **settings: Any) -> Consumer:
    """Return a consumer of a group, with auto_offset_reset="earliest"."""
    defaults = {
        "group_id": group,
        "auto_offset_reset": "earliest",
        "max_poll_interval_ms": MAX_POLL_MS,
    }
    if settings.get("group_protocol") != "consumer":  # which has these of its group
        defaults |= {"session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": HEARTBEAT_MS}
    return Consumer(store, *topics, **{**defaults, **settings})


def take_turns(consumers: Iterable[Consumer], turns: int = 6) -> list[ConsumerRecord]:
    """Poll each consumer without waiting, `turns` times, and return the records that they got."""
    consumers = list(consumers)
    found = []
    for _ in range(turns):
        for consumer in consumers:
            for records in consumer.poll().values():
                found += records
    return found


def settled(store: segstore.Store, consumers: Iterable[Consumer], group: str = "g") -> list[ConsumerRecord]:
    """Poll as `take_turns` does, until the group is stable and all members know it."""
    consumers, found = list(consumers), []
    for _ in range(20):
        found += take_turns(consumers, 1)
        places = {c.group_metadata()[1::3] for c in consumers}
        if coordinator(store).state(group).value == ClassicGroupState.STABLE.value and places == {
            (coordinator(store).generation(group), "<stable>")
        }:
            return found
    raise AssertionError(f"group {group} does not come to rest")


def owned(consumer: Consumer, topic: str = "t") -> set[int]:
    """Return the numbers of a consumer's partitions."""
    return {tp.partition for tp in consumer.assignment() if tp.topic == topic}


def every(store: segstore.Store, *topics: str) -> set[TopicPartition]:
    """Return all partitions of these topics."""
    there = store.topics()
    return {TopicPartition(t, p) for t in topics for p in there[t].partition_ids}
