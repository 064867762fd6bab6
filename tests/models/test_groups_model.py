"""A model of group membership: whatever happens in whatever order, a partition has one owner in a generation,
no partition stays without an owner for long, every record is seen, and committed offsets only move forward.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from groups import (
    HEARTBEAT_MS,
    MAX_POLL_MS,
    SESSION_MS,
    Monotonic,
    Unsynced,
    coordinator,
    every,
    member,
    offsets,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import segstore
from segstore.client.consumer import Consumer
from segstore.coordinator.group.classic.member import ClassicGroupState
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)

pytestmark = pytest.mark.kind("models")

GROUP, TOPICS, MOST = "g", ("a", "b"), 4
STALE = (IllegalGenerationError, UnknownMemberIdError, FencedInstanceIdError)
SOME_TOPICS = st.sampled_from([["a"], ["b"], ["a", "b"]])
WHICH = st.integers(0, MOST - 1)


class Membership(RuleBasedStateMachine):
    """Consumers of one group, polled in turn by one thread."""

    @initialize(strategy=st.sampled_from(["range", "roundrobin", "sticky", "cooperative-sticky"]))
    def begin(self, strategy: str) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.strategy, self.clock = strategy, Monotonic()
        self.consumers: list[Consumer] = []
        self.written: set[tuple[TopicPartition, int]] = set()
        self.seen: set[tuple[TopicPartition, int]] = set()
        self.before: dict[TopicPartition, int] = {}
        self.places: list[ConsumerGroupMetadata] = []
        self.generation = self.kept = 0
        self.open()
        for topic in TOPICS:
            self.store.create_topic(topic, partitions=2)
            self.produce(topic, 0)
            self.produce(topic, 1)

    def open(self) -> None:
        path, config = Path(self.directory.name) / "store", {"offsets.topic.num.partitions": 1}
        self.store = segstore.open(path, config=config, files=Unsynced())
        self.coordinator = coordinator(self.store, self.clock)

    def teardown(self) -> None:
        if not hasattr(self, "directory"):
            return
        try:
            self.all_is_seen_in_the_end()
        finally:
            path = self.store.path
            self.store.close()
            findings = segstore.check(path)
            self.directory.cleanup()
        assert findings == []

    # --- members -------------------------------------------------------------------------------

    @precondition(lambda self: len(self.consumers) < MOST)
    @rule(topics=SOME_TOPICS, instance=st.sampled_from([None, None, "x", "y"]), auto=st.booleans())
    def start(self, topics: list[str], instance: str | None, auto: bool) -> None:
        self.consumers.append(self.member(topics, instance, auto))

    def member(self, topics: list[str], instance: str | None, auto: bool) -> Consumer:
        return member(
            self.store,
            *topics,
            group_instance_id=instance,
            enable_auto_commit=auto,
            auto_commit_interval_ms=0,
            partition_assignment_strategy=[self.strategy],
        )

    def some(self, which: int) -> Consumer | None:
        return self.consumers[which % len(self.consumers)] if self.consumers else None

    @rule(which=WHICH)
    def poll(self, which: int) -> None:
        consumer = self.some(which)
        if consumer is not None:
            self.poll_it(consumer)

    def poll_it(self, consumer: Consumer) -> None:
        try:
            polled = consumer.poll(max_records=3)
        except FencedInstanceIdError:
            assert consumer.config.group_instance_id is not None
            assert consumer.assignment() == set()
            self.consumers.remove(consumer)
            consumer.close()
            return
        self.seen |= {(tp, record.offset) for tp, records in polled.items() for record in records}
        self.places.append(consumer.group_metadata())

    @rule(which=WHICH)
    def close(self, which: int) -> None:
        consumer = self.some(which)
        if consumer is not None:
            self.consumers.remove(consumer)
            consumer.close()

    @rule(which=WHICH)
    def crash(self, which: int) -> None:
        if self.consumers:
            self.consumers.pop(which % len(self.consumers))

    @rule(which=WHICH, topics=SOME_TOPICS)
    def subscribe(self, which: int, topics: list[str]) -> None:
        consumer = self.some(which)
        if consumer is not None:
            consumer.subscribe(topics)

    # --- the world ---------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([HEARTBEAT_MS, SESSION_MS, MAX_POLL_MS]))
    def time_passes(self, ms: int) -> None:
        self.clock.now += ms + 1
        self.coordinator.run_due()

    @precondition(lambda self: sum(info.partitions for info in self.store.topics().values()) < 9)
    @rule(topic=st.sampled_from(TOPICS))
    def more_partitions(self, topic: str) -> None:
        total = self.store.topics()[topic].partitions + 1
        self.store.add_partitions(topic, total)
        self.produce(topic, total - 1)

    @rule(topic=st.sampled_from(TOPICS), partition=st.integers(0, 1))
    def produce(self, topic: str, partition: int) -> None:
        found = self.store.partition(topic, partition).append_batch([b"value"] * 4)
        self.written |= {(TopicPartition(topic, partition), offset) for offset in found}

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.consumers.clear()
        self.generation = self.kept
        self.open()

    # --- commits -----------------------------------------------------------------------------------

    @rule(which=WHICH)
    def commit(self, which: int) -> None:
        consumer = self.some(which)
        if consumer is None:
            return
        place = consumer.group_metadata()
        try:
            consumer.commit()
        except (CommitFailedError, RebalanceInProgressError, FencedInstanceIdError):
            return
        current = {m.member_id for m in self.coordinator.members(GROUP)}
        assert not consumer.assignment() or place.member_id in current

    @precondition(lambda self: self.places)
    @rule(data=st.data())
    def stale_commit(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(self.places))
        members = {m.member_id for m in self.coordinator.members(GROUP)}
        if place.generation_id == self.coordinator.generation(GROUP) and place.member_id in members:
            return
        if place.generation_id < 0:
            return
        try:
            self.coordinator.commit(place, {TopicPartition("a", 0): OffsetAndMetadata(0)})
        except STALE:
            return
        raise AssertionError(f"{place} has committed in {self.coordinator.generation(GROUP)}")

    @precondition(
        lambda self: self.coordinator.state(GROUP) in (ClassicGroupState.EMPTY, ClassicGroupState.DEAD)
    )
    @rule()
    def reset(self) -> None:
        def to_start() -> None:
            found = offsets(self.store).fetch(GROUP)
            offsets(self.store).commit(GROUP, dict.fromkeys(found, OffsetAndMetadata(0)))

        self.coordinator.while_empty(GROUP, to_start)
        self.before = {}

    # --- what always holds ---------------------------------------------------------------------------

    @invariant()
    def one_owner_in_a_generation(self) -> None:
        owners: dict[tuple[int, TopicPartition], str] = {}
        consumers = getattr(self, "consumers", ())
        # One that another with its instance has replaced is no member: its commits are refused.
        members = {m.member_id for m in self.coordinator.members(GROUP)} if consumers else set()
        for consumer in consumers:
            place = consumer.group_metadata()
            for tp in consumer.assignment() if place.member_id in members else ():
                assert owners.setdefault((place.generation_id, tp), place.member_id) == place.member_id

    @invariant()
    def generations_and_commits_move_forward(self) -> None:
        if not hasattr(self, "store"):
            return
        generation = self.coordinator.generation(GROUP)
        assert generation == -1 or generation >= self.generation
        self.generation = max(generation, self.generation)
        # As in Kafka: one whose leader never brought an assignment is written nowhere, and nobody can commit
        # in it.
        if self.coordinator.state(GROUP) in (ClassicGroupState.STABLE, ClassicGroupState.EMPTY):
            self.kept = self.generation
        committed = {tp: at.offset for tp, at in offsets(self.store).fetch(GROUP).items()}
        for tp, before in self.before.items():
            assert committed[tp] >= before
        self.before = committed

    def all_is_seen_in_the_end(self) -> None:
        """Who is gone for good is out after a while, and those who stay have everything."""
        self.consumers.append(self.member(list(TOPICS), None, auto=True))
        for consumer in self.consumers:
            consumer.subscribe(list(TOPICS))
        for _ in range(2 * MAX_POLL_MS // SESSION_MS):
            self.time_passes(SESSION_MS * 6 // 10)
            for _ in range(3):
                for consumer in list(self.consumers):
                    self.poll_it(consumer)
                    self.one_owner_in_a_generation()
        self.check_stable()
        for _ in range(len(self.written)):
            for consumer in self.consumers:
                self.poll_it(consumer)
        assert self.written <= self.seen

    def check_stable(self) -> None:
        assert self.coordinator.state(GROUP) is ClassicGroupState.STABLE
        had: dict[str, Any] = {c.group_metadata().member_id: c.assignment() for c in self.consumers}
        assert set(had) == {m.member_id for m in self.coordinator.members(GROUP)}
        assert set().union(*had.values()) == every(self.store, *TOPICS)
        assert sum(map(len, had.values())) == len(every(self.store, *TOPICS))


Membership.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
test_membership = Membership.TestCase
