"""Steps of consumer groups: their members commit, come, go and come back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simulation.model import hold

import segstore
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.java_hash import partition_of
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import CommitFailedError, FencedInstanceIdError, RebalanceInProgressError, SegstoreError

from .judge import Part
from .world import CONFIG, Skip, World

GROUP, ALONE = "members", "nobody"
"""A group of consumers, and one that never has members."""
OFFSETS = "__consumer_offsets"
REFUSED = (CommitFailedError, RebalanceInProgressError, FencedInstanceIdError)
ROUNDS = 3
"""Polls of each member, after which all have joined, where nothing keeps them from it."""


@dataclass
class Committed:
    """The offset of a group in a partition: that of the last acknowledged commit, and those of commits since
    then whose outcome is not known, in their order.
    """

    part: Part
    sure: int | None = None
    maybe: list[int] = field(default_factory=list)

    @property
    def possible(self) -> list[int | None]:
        return [self.sure, *self.maybe]

    def seen(self, offset: int | None, group: str) -> None:
        """It was read, and is never again what it was before."""
        hold(offset in self.possible, group, "has committed", offset, "for", self.part, "of", self.possible)
        if offset != self.sure:
            self.sure, self.maybe = offset, self.maybe[self.maybe.index(offset or 0) + 1 :]


def commit(world: World, topic: str, number: int, share: int) -> str:
    """An offset is committed, by nobody who is a member."""
    part = world.part(topic, number)
    log = world.live.partition(topic, number)
    offset = log.start_offset + (log.end_offset - log.start_offset) * share // 100
    coordinator, tp = shared(world.live, GroupCoordinator), TopicPartition(topic, number)
    with _Trying(world, ALONE, {tp: offset}):
        coordinator.commit(ConsumerGroupMetadata(ALONE), {tp: OffsetAndMetadata(offset)})
    look(world, False)
    return f"{part} {offset}"


class _Trying:
    """Offsets are committed in this block; an error leaves it open whether they are."""

    def __init__(self, world: World, group: str, offsets: dict[TopicPartition, int]) -> None:
        parts = [(world.parts[tp], offset) for tp, offset in offsets.items() if tp in world.parts]
        self._all = [(_committed(world, group, part), offset) for part, offset in parts]

    def __enter__(self) -> None:
        for committed, offset in self._all:
            committed.maybe.append(offset)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for committed, offset in self._all:
            if kind is None:
                committed.sure, committed.maybe = offset, []
            elif issubclass(kind, REFUSED):
                committed.maybe.pop()


def _committed(world: World, group: str, part: Part) -> Committed:
    key = group, part.topic, part.number, part.topic_id
    return world.commits.setdefault(key, Committed(part))  # type: ignore[no-any-return]


def consume(world: World, name: str, commits: bool) -> str:
    """A consumer comes, or is there; all members of its group poll, and it may commit its positions."""
    if name not in world.consumers:
        world.consumers[name] = _joining(world, name)
    count = 0
    for _ in range(ROUNDS):
        for consumer in world.consumers.values():
            count += _poll(world, consumer)
    consumer = world.consumers[name]
    at = _positions(consumer)
    if commits:
        at = {tp: offset for tp, offset in at.items() if tp in world.parts}
        with _Trying(world, GROUP, at):
            consumer.commit({tp: OffsetAndMetadata(offset) for tp, offset in at.items()})
        look(world, False)
    return f"{count} records, at {[*at.values()]}"


def _joining(world: World, name: str) -> Any:
    topics = sorted({topic for topic, _ in world.parts})
    if not topics:
        raise Skip
    return segstore.Consumer(
        world.live,
        *topics,
        group_id=GROUP,
        group_instance_id=name if name == "static" else None,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=20,
    )


def _positions(consumer: Any) -> dict[TopicPartition, int]:
    """Those that are known."""
    states = consumer._subscription.states
    return {tp: state.position for tp, state in states.items() if state.position is not None}


def _poll(world: World, consumer: Any) -> int:
    """Who gets a partition goes on where its group has come to: nothing is passed over, nor read again from
    before an acknowledged commit.
    """
    before, seat = _positions(consumer), consumer.group_metadata()
    polled = consumer.poll()
    after, joined = _positions(consumer), consumer.group_metadata() != seat
    for tp, position in after.items():
        part, records = world.parts.get(tp), polled.get(tp, [])
        if part is not None and (joined or tp not in before):
            _begun(world, part, records[0].offset if records else position)
    return sum(map(len, polled.values()))


def _begun(world: World, part: Part, at: int) -> None:
    committed = _committed(world, GROUP, part)
    if part.free or part.compacted or part.retained or _is_lost(world, GROUP):
        return
    # What was to be deleted may be there; a position below the start of the log stays until it is fetched.
    first = [offset or 0 for offset in committed.possible]
    hold(at >= min(first), part, "is read from", at, "on, and committed are", committed.possible)
    passed = [offset for offset in part.acked if max(min(first), part.trimmed) <= offset < at]
    hold(
        at <= max(*first, part.trimmed) or not passed,
        part,
        "is read from",
        at,
        "on, without",
        passed,
        committed.possible,
    )


def leave(world: World, name: str, told: bool) -> str:
    """A consumer is closed, or is gone without a word."""
    consumer = world.consumers.pop(name, None)
    if consumer is None:
        raise Skip
    if told:
        consumer.close()
    return "left" if told else "gone"


def _is_lost(world: World, group: str) -> bool:
    """Whether a rule allows that commits of a group were lost."""
    number = partition_of(group, CONFIG["offsets.topic.num.partitions"])
    own = world.own.get((OFFSETS, number))
    return own is not None and own.free


def look(world: World, settled: bool) -> None:
    """An acknowledged commit never goes back, whoever leads."""
    for key, committed in list(world.commits.items()):
        if world.parts.get((key[1], key[2])) is not committed.part:
            del world.commits[key]
    for group in (GROUP, ALONE):
        _compare(world, group, settled)


def _compare(world: World, group: str, settled: bool) -> None:
    if not any(key[0] == group for key in world.commits):
        return
    try:
        found = shared(world.live, GroupOffsets).fetch(group)
    except SegstoreError as error:
        hold(not settled, group, "has offsets that can't be read:", repr(error))
        return
    for key, committed in world.commits.items():
        if key[0] != group:
            continue
        held = found.get(TopicPartition(committed.part.topic, committed.part.number))
        offset = None if held is None else held.offset
        if _is_lost(world, group):
            if settled:
                committed.sure, committed.maybe = offset, []
        else:
            committed.seen(offset, group)


OPS: dict[str, Callable[..., Any]] = {f.__name__: f for f in (commit, consume, leave)}
