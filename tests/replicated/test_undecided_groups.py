"""Promise: a group whose records can't be written, or were and are not known to be committed, answers at once
that it may be asked again, and keeps no other group waiting; when its directories are back, it goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from group_members import CLASSIC_SESSION_MS, Classic, Member, info
from groups import Monotonic, coordinator, offsets
from replicated_stores import PATIENT, Directories, await_in_sync
from waiting import until

import segstore
from segstore import mutex
from segstore.coordinator.offsets.group_offsets import TOPIC
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import OffsetNotAvailableError, QuorumLostError, RequestTimedOutError, SegstoreError
from segstore.replication import store as replicated_store
from segstore.replication.metadata.image import PartitionKey

pytestmark = pytest.mark.kind("replicated stores")

AT = TopicPartition("t", 0)
FOR_EVER_MS = 600_000
OTHER = "other-5"
"""A group whose partition is not that of "g"."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Monotonic:
    """The coordinator's clock; whoever waits for another thread with a group's lock waits for a long time."""
    monkeypatch.setattr(replicated_store, "COMMITTED", FOR_EVER_MS / 1000)
    monkeypatch.setattr(replicated_store, "ALL", replicated_store.ALL._replace(timeout_ms=FOR_EVER_MS))
    return Monotonic()


def opened(three: Directories, clock: Monotonic, **config: Any) -> segstore.Store:
    store = three.open(min_insync_replicas=2, **config)
    store.create_topic("t", 6, replication_factor=3, exist_ok=True)
    coordinator(store, clock)
    return store


def partition_of(store: segstore.Store, group: str = "g") -> int:
    return offsets(store).partition_for(group)


def leader_of(store: Any, group: str = "g") -> int:
    leader: int = store.describe_partition(TOPIC, partition_of(store, group)).leader
    return leader


class Asked:
    """A request, in a thread of its own."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self.error: SegstoreError | None = None
        self._ask = ask
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._ask()
        except SegstoreError as error:
            self.error = error

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def answered(self) -> SegstoreError | None:
        until(lambda: self.is_over, 60)
        return self.error


@contextmanager
def hanging(three: Directories, store: Any) -> Iterator[None]:
    """The disks of both followers of the group's partition hang."""
    for number in {0, 1, 2} - {leader_of(store)}:
        three.files.hang(three.paths[number])
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(mutex, "PATIENCE", 0.5)
            yield
    finally:
        three.files.mend()


def a_group(store: segstore.Store, clock: Monotonic) -> Member:
    a = Member(store, "a").join()
    coordinator(store).commit(ConsumerGroupMetadata("g", a.epoch, "a"), {AT: OffsetAndMetadata(7)})
    assert partition_of(store) != partition_of(store, OTHER)
    other = Classic(store, "c", group=OTHER).join()
    clock.now += 10_000  # past the initial delay of a rebalance
    until(lambda: other.turn() or other.has)
    return a


def in_log(store: Any) -> int:
    end: int = store.partition(TOPIC, partition_of(store)).log_end_offset
    return end


@pytest.mark.hangs
def test_while_a_write_waits_for_replicas_others_are_answered(three: Directories, clock: Monotonic) -> None:
    store = opened(three, clock, offsets_commit_timeout_ms=FOR_EVER_MS, **PATIENT)
    a = a_group(store, clock)
    d = Classic(store, "d", group=OTHER).join()
    assert d.joining is not None
    assert d.joining.get() is None  # it waits for the first member of its group
    end = in_log(store)
    with hanging(three, store):
        joining = Asked(Member(store, "b").join)
        until(lambda: in_log(store) > end)
        for ask in (a.beat, lambda: offsets(store).fetch("g"), lambda: coordinator(store).state("g")):
            assert isinstance(Asked(ask).answered(), OffsetNotAvailableError)
        clock.now += CLASSIC_SESSION_MS + 1  # the session of that member
        until(lambda: Asked(coordinator(store).run_due).answered() is None and d.joining.get() is not None)
        assert not joining.is_over
    assert joining.answered() is None
    a.beat()
    assert {each.member_id for each in info(store).members} == {"a", "b"}
    assert offsets(store).fetch("g")[AT].offset == 7


@pytest.mark.hangs
def test_until_a_late_write_is_decided_no_other_begins(three: Directories, clock: Monotonic) -> None:
    store = opened(three, clock, offsets_commit_timeout_ms=200, **PATIENT)
    a = a_group(store, clock)
    with hanging(three, store):
        assert isinstance(Asked(Member(store, "b").join).answered(), RequestTimedOutError)
        end = in_log(store)
        member = ConsumerGroupMetadata("g", a.epoch, "a")
        for ask in (
            a.beat,
            lambda: coordinator(store).commit(member, {AT: OffsetAndMetadata(8)}),
            lambda: offsets(store).commit("g", {AT: OffsetAndMetadata(8)}),
        ):
            error = Asked(ask).answered()
            assert isinstance(error, OffsetNotAvailableError), error
            assert "not known yet" in str(error)
        assert in_log(store) == end
        assert offsets(store).fetch("g")[AT].offset == 7
        clock.now += 46_000  # longer than a session, in which no heartbeat could be answered
    await_in_sync(store)
    a.beat()
    assert {each.member_id for each in info(store).members} == {"a", "b"}
    assert offsets(store).fetch("g")[AT].offset == 7


def lose_leader(three: Directories, store: Any, group: str) -> None:
    """Two of three directories are gone, and with them the leader of the group's partition."""
    leader = leader_of(store, group)
    manager, key = store.replicated.manager, PartitionKey(TOPIC, partition_of(store, group))
    for number in ((leader + 1) % 3, leader):  # the leader last: without a quorum no other one is elected
        three.lose(number)
        until(lambda number=number: manager.directories[number].error is not None)
    until(lambda: manager.leader(key) is None)


def test_with_two_of_three_directories_gone_what_was_not_read_is_not_waited_for(
    three: Directories, clock: Monotonic
) -> None:
    store = opened(three, clock)
    Member(store, "a").join()
    lose_leader(three, store, OTHER)
    for ask in (
        lambda: offsets(store).fetch(OTHER),
        lambda: coordinator(store).state(OTHER),
        Classic(store, "c", group=OTHER).join,
    ):
        assert isinstance(Asked(ask).answered(), OffsetNotAvailableError)


def test_with_two_of_three_directories_gone_a_group_answers_at_once(
    three: Directories, clock: Monotonic
) -> None:
    store = opened(three, clock)
    a = a_group(store, clock)
    lose_leader(three, store, "g")
    new = ConsumerGroupMetadata("g-1")
    assert partition_of(store, "g-1") == partition_of(store)
    for ask in (
        Member(store, "b").join,
        lambda: offsets(store).commit("g", {AT: OffsetAndMetadata(8)}),
        lambda: coordinator(store).commit(new, {AT: OffsetAndMetadata(8)}),
    ):
        assert isinstance(Asked(ask).answered(), OffsetNotAvailableError | QuorumLostError)
    assert Asked(a.beat).answered() is None  # nothing has to be written for it
    clock.now += 60_000
    assert Asked(coordinator(store).run_due).answered() is None
    three.close()
    three.bring_back()
    store = opened(three, clock)
    await_in_sync(store)
    assert {each.member_id for each in info(store).members} == {"a"}
    assert offsets(store).fetch("g")[AT].offset == 7
    Member(store, "b").join()
