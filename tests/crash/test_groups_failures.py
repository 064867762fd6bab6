"""Members of a group that are late, gone, replaced or refused."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from consumers import append, fill, replace_waits, tp
from groups import (
    KINDS,
    MAX_POLL_MS,
    SESSION_MS,
    Monotonic,
    Told,
    coordinator,
    every,
    member,
    owned,
    settled,
    take_turns,
)
from waiting import until

import segstore
from segstore.client.consumer import ConsumerRebalanceListener
from segstore.coordinator.group.classic.member import ClassicGroupState
from segstore.coordinator.structs import OffsetAndMetadata
from segstore.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    ReadOnlyError,
    RebalanceInProgressError,
)


@pytest.fixture
def clock(store: segstore.Store) -> Monotonic:
    clock = Monotonic()
    coordinator(store, clock)
    return clock


# --- members that fail -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_late_member_loses_all_and_is_told(store: segstore.Store, clock: Monotonic, kind: str) -> None:
    fill(store, partitions=2)
    told = Told()
    late, other = member(store, **KINDS[kind]), member(store, "t", **KINDS[kind])
    late.subscribe(["t"], listener=told)
    settled(store, [late, other])
    had, stale = owned(late), late.group_metadata()
    for _ in range(4):
        clock.now += MAX_POLL_MS / 4
        coordinator(store).run_due()
        other.poll()
    settled(store, [other])
    assert other.assignment() == every(store, "t")
    with pytest.raises(CommitFailedError, match="max_poll_interval_ms=30000"):
        late.commit()
    with pytest.raises(segstore.errors.UnknownMemberIdError):
        coordinator(store).while_valid(stale, (), list)
    late.poll()
    assert told.told[-1] == ("lost", had)
    settled(store, [late, other])
    assert len(late.assignment()) == 1


def test_a_late_member_learns_it_in_poll(store: segstore.Store, clock: Monotonic) -> None:
    fill(store)
    told = Told()
    late = member(store)
    late.subscribe(["t"], listener=told)
    settled(store, [late])
    generation = late.group_metadata().generation_id
    clock.now += MAX_POLL_MS
    coordinator(store).run_due()
    assert coordinator(store).state("g") is ClassicGroupState.EMPTY
    settled(store, [late])
    assert told.told[-2:] == [("lost", {0}), ("assigned", {0})]
    assert late.group_metadata().generation_id > generation + 1


def test_a_listener_that_knows_revoked_alone_may_call_the_consumer_of_what_is_lost(
    store: segstore.Store, clock: Monotonic
) -> None:
    """`on_partitions_lost` calls `on_partitions_revoked` by default. Before: its calls were refused as those
    of a signal's handler.
    """

    class Asking(ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked: Any) -> None:
            positions.append({each.partition: late.position(each) for each in revoked})

        def on_partitions_assigned(self, assigned: Any) -> None:
            """Nothing."""

    fill(store)
    positions: list[dict[int, int]] = []
    late = member(store)
    late.subscribe(["t"], listener=Asking())
    settled(store, [late])
    clock.now += MAX_POLL_MS
    coordinator(store).run_due()
    settled(store, [late])
    assert positions == [{0: late.position(tp(0))}]


def test_a_callback_of_a_commit_within_a_listener_may_call_the_consumer(store: segstore.Store) -> None:
    """Before: it was refused as a signal's handler."""
    seen: list[Any] = []

    def assigned(how: str, partitions: Any) -> None:
        if how == "assigned":
            future = consumer.commit_async({tp(0): OffsetAndMetadata(3)})
            future.add_both(lambda _: seen.append(consumer.committed(tp(0))))

    fill(store)
    consumer = member(store)
    consumer.subscribe(["t"], listener=Told(assigned))
    settled(store, [consumer])
    assert seen
    consumer.close()


def test_one_that_is_gone_without_a_word_is_out_after_its_session(
    store: segstore.Store, clock: Monotonic
) -> None:
    fill(store, partitions=2)
    gone, other = member(store, "t"), member(store, "t")
    settled(store, [gone, other])
    alive = weakref.ref(gone)
    del gone
    until(lambda: gc.collect() >= 0 and alive() is None)
    clock.now += SESSION_MS - 1
    take_turns([other])
    assert len(other.assignment()) == 1
    clock.now += 1
    coordinator(store).run_due()
    settled(store, [other])
    assert len(other.assignment()) == 2


def test_a_member_that_waits_in_poll_stays_alive(
    store: segstore.Store, clock: Monotonic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes, and is seen to be at work, before each max_poll_interval_ms is over."""
    fill(store)
    consumer = member(store, "t", heartbeat_interval_ms=10)
    settled(store, [consumer])
    take_turns([consumer])
    generation, end = consumer.group_metadata().generation_id, clock.now + 5 * MAX_POLL_MS

    def wait(_store: segstore.Store, timeout_ms: float) -> None:
        clock.now += timeout_ms
        coordinator(store).run_due()
        if clock.now >= end:
            append(store, 1)

    replace_waits(monkeypatch, wait)
    assert len(consumer.poll(timeout_ms=1e9)) == 1
    assert consumer.group_metadata().generation_id == generation


def test_a_static_member_comes_back_to_what_it_had(store: segstore.Store, clock: Monotonic) -> None:
    fill(store, partitions=2)
    told = Told()
    static, other = member(store, "t", group_instance_id="x"), member(store)
    other.subscribe(["t"], listener=told)
    settled(store, [static, other])
    had, place = static.assignment(), other.group_metadata()
    static.close()
    clock.now += SESSION_MS / 2
    take_turns([other])
    with member(store, "t", group_instance_id="x") as back:
        settled(store, [back, other])
        assert back.assignment() == had
        assert other.group_metadata() == place
        assert len(told.told) == len([t for t in told.told if t[0] == "assigned"]) * 2 - 1
    clock.now += SESSION_MS
    coordinator(store).run_due()
    settled(store, [other])
    assert other.assignment() == every(store, "t")


def test_the_older_of_two_with_one_instance_is_fenced(store: segstore.Store) -> None:
    fill(store)
    told = Told()
    old = member(store, group_instance_id="x")
    old.subscribe(["t"], listener=told)
    settled(store, [old])
    new = member(store, "t", group_instance_id="x")
    settled(store, [new])
    with pytest.raises(FencedInstanceIdError, match="'x'"):
        old.commit({tp(): OffsetAndMetadata(1)})
    for _ in range(2):
        with pytest.raises(FencedInstanceIdError, match="'x'"):
            old.poll()
    assert told.told[-1] == ("lost", {0})
    old.close()
    assert settled(store, [new]) is not None
    assert new.assignment() == {tp()}


def test_a_static_leader_that_was_away_finds_new_partitions(store: segstore.Store) -> None:
    fill(store)
    leader, other = member(store, "t", group_instance_id="x"), member(store, "t")
    settled(store, [leader, other])
    leader.close()
    store.add_partitions("t", 4)
    leader = member(store, "t", group_instance_id="x")
    take_turns([leader, other])
    settled(store, [leader, other])
    assert leader.assignment() | other.assignment() == every(store, "t")


# --- bad input ---------------------------------------------------------------------------------

REFUSED = {
    "a session that is too short": (
        {"session_timeout_ms": 5_999},
        InvalidSessionTimeoutError,
        "from 6000 to",
    ),
    "another protocol": (
        {"partition_assignment_strategy": ["sticky"]},
        InconsistentGroupProtocolError,
        "'sticky'",
    ),
    "one too many": ({}, GroupMaxSizeReachedError, "group.max.size"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_group_refuses(store_dir: Path, case: str) -> None:
    settings, error, said = REFUSED[case]
    with segstore.open(store_dir, config={"group.max.size": 1}) as store:
        fill(store)
        there = member(store, "t")
        settled(store, [there])
        refused = member(store, "t", **settings)
        with pytest.raises(error, match=said):
            refused.poll()
        refused.close()
        settled(store, [there])


def test_a_reader_has_no_group(store: segstore.Store) -> None:
    fill(store)
    with (
        segstore.open(store.path, mode="r") as reader,
        pytest.raises(ReadOnlyError, match="group_id='g': groups"),
    ):
        member(reader, "t")


def test_a_commit_within_a_rebalance(store: segstore.Store) -> None:
    fill(store)
    first, second = member(store, "t"), member(store, "t")
    settled(store, [first])
    second.poll()
    with pytest.raises(RebalanceInProgressError, match=r"poll\(\)"):
        second.commit({tp(): OffsetAndMetadata(1)})
    with pytest.raises(CommitFailedError, match="no member"):
        member(store, "t").commit({tp(): OffsetAndMetadata(1)})
