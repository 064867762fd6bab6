"""Steps of consumers and their groups, and offsets that are committed without one."""

from __future__ import annotations

from typing import Any

import segstore
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    RebalanceInProgressError,
)

from .model import Part, hold, same
from .ops_transactions import Transactions
from .world import Skip

REFUSED = (CommitFailedError, RebalanceInProgressError, FencedInstanceIdError)


class Groups(Transactions):
    """What the steps of this module need."""

    def trying(self, group: str, offsets: dict[TopicPartition, int]) -> None:
        """Somebody is about to commit these."""
        for tp, offset in offsets.items():
            self.tentative.setdefault((group, *tp), set()).add(offset)

    def acknowledged(self, group: str, offsets: dict[TopicPartition, int]) -> None:
        for tp, offset in offsets.items():
            self.tentative.pop((group, *tp), None)
            self.committed((group, *tp), offset)
        self.check_offsets()


def commit_offset(world: Groups, group: str, topic: str, number: int, part_of: int) -> str:
    """An offset, by nobody who is a member."""
    part = world.part(topic, number)
    at = {TopicPartition(topic, number): part.start + (part.end - part.start) * part_of // 100}
    world.trying(group, at)
    world.group_offsets.commit(group, {tp: OffsetAndMetadata(offset) for tp, offset in at.items()})
    world.acknowledged(group, at)
    return str(list(at.values()))


def join(world: Groups, name: str, group: str, topics: tuple[str, ...], committed: bool) -> str:
    """A consumer that will be a member when it is polled."""
    there = [topic for topic in topics if topic in world.topics]
    if name in world.consumers or not there:
        raise Skip
    world.consumers[name] = segstore.Consumer(
        world.live,
        *there,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed" if committed else "read_uncommitted",
        session_timeout_ms=10_000,
        max_poll_interval_ms=30_000,
        heartbeat_interval_ms=1000,
    )
    return group


def poll(world: Groups, name: str, n: int) -> str:
    """What a consumer is given is what comes next, all of it."""
    consumer = member(world, name)
    before, seat = positions(consumer), consumer.group_metadata()
    polled = consumer.poll(max_records=n)
    after = positions(consumer)
    joined = consumer.group_metadata() != seat  # then it goes on where its group has come to
    for tp, records in polled.items():
        part = world.part(*tp)
        began = None if joined else before.get(tp)
        at = records[0].offset if began is None or began > records[0].offset else began
        check_given(world, part, records, at, after.get(tp), consumer.config.isolation_level)
    return f"{sum(map(len, polled.values()))} records, {len(after)} partitions"


def check_given(
    world: Groups, part: Part, records: list[Any], at: int, position: int | None, isolation_level: str
) -> None:
    given = {r.offset: (r.key, r.value, tuple(r.headers), r.timestamp) for r in records}
    for offset, content in given.items():
        entry = part.entries.get(offset)
        # What was read ahead may be gone since.
        hold(entry is not None or offset < part.start, part, offset, "was never written:", content)
        hold(entry is None or same(entry.content, content), part, offset, "was given as", content)
        if entry is not None and isolation_level == "read_committed":
            hold(part.outcome(entry) == "commit", part, offset, "is not committed, and was given")
    upto = (position or 0) if position is not None else max(given) + 1
    missing = [
        e.offset
        for e in part.live()
        if max(at, part.start) <= e.offset < upto
        and e.offset not in given
        and (isolation_level == "read_uncommitted" or part.outcome(e) == "commit")
    ]
    hold(not missing, part, missing, "were passed over between", at, "and", upto)


def member(world: Groups, name: str) -> segstore.Consumer:
    if name not in world.consumers:
        raise Skip
    return world.consumers[name]


def positions(consumer: segstore.Consumer) -> dict[TopicPartition, int]:
    """Those that are known."""
    states = consumer._subscription.states
    return {tp: state.position for tp, state in states.items() if state.position is not None}


def commit(world: Groups, name: str) -> str:
    """A member commits its positions."""
    consumer = member(world, name)
    group, at = consumer.config.group_id, positions(consumer)
    there = {part.key for part in world.parts()}  # a topic made anew may have fewer partitions
    at = {tp: offset for tp, offset in at.items() if tp in there}
    world.trying(group, at)
    try:
        consumer.commit({tp: OffsetAndMetadata(offset) for tp, offset in at.items()})
    except REFUSED as error:
        for tp in at:
            world.tentative.pop((group, *tp), None)
        world.check_offsets()
        return type(error).__name__
    world.acknowledged(group, at)
    return str(sorted(at.values()))


def leave(world: Groups, name: str) -> str:
    """A consumer is closed."""
    member(world, name).close()
    world.consumers.pop(name)
    return "left"


def vanish(world: Groups, name: str) -> str:
    """A consumer is gone without a word."""
    member(world, name)
    world.consumers.pop(name)
    return "gone"


OPS: dict[str, Any] = {f.__name__: f for f in (commit_offset, join, poll, commit, leave, vanish)}
