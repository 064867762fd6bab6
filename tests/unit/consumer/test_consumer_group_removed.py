"""Consumers in the process that their consumer group (KIP-848) takes for failed, and static members, whose
place is kept.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from consumer_members import SESSION_MS, epoch, late, ours
from consumer_members import clock as clock
from consumer_members import store as store
from consumers import fill, tp
from group_members import Member
from groups import (
    MAX_POLL_MS,
    Monotonic,
    Told,
    Unsynced,
    coordinator,
    is_empty,
    member_ids,
    owned,
    settled,
    take_turns,
)
from waiting import until

import segstore
from segstore.client.consumer import Consumer
from segstore.coordinator.group.consumers.membership import ConsumerMembership
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.structs import OffsetAndMetadata
from segstore.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    StaleMemberEpochError,
    StorageError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)

# --- members that are taken for failed ------------------------------------------------------------


def removed(store: segstore.Store, consumer: Consumer, clock: Monotonic) -> None:
    coordinator(store).leave("g", consumer.group_metadata().member_id)


def forgotten(store: segstore.Store, consumer: Consumer, clock: Monotonic) -> None:
    removed(store, consumer, clock)
    segstore.Groups(store).delete("g")


FAILURES = {"too late": late, "removed": removed, "the group is gone": forgotten}


@pytest.mark.parametrize("name", FAILURES)
def test_a_member_that_was_removed_has_lost_all_and_joins_anew(
    store: segstore.Store, clock: Monotonic, name: str
) -> None:
    fill(store, partitions=2, records=8)
    told = Told()
    consumer = ours(store, enable_auto_commit=False)
    consumer.subscribe(["t"], listener=told)
    settled(store, [consumer])
    before = consumer.group_metadata()
    FAILURES[name](store, consumer, clock)
    assert member_ids(store) == []
    with pytest.raises(CommitFailedError, match="max_poll_interval_ms"):
        consumer.commit({tp(): OffsetAndMetadata(3)})
    if name != "the group is gone":
        with pytest.raises((StaleMemberEpochError, UnknownMemberIdError)):
            coordinator(store).while_valid(before, [tp()], list)
    settled(store, [consumer])
    assert told.told == [("assigned", {0, 1}), ("lost", {0, 1}), ("assigned", {0, 1})]
    assert consumer.group_metadata().member_id == before.member_id  # it has one for its whole life
    consumer.commit({tp(): OffsetAndMetadata(3)})


def test_a_member_that_polls_in_time_outlives_its_session(store: segstore.Store, clock: Monotonic) -> None:
    fill(store)
    with ours(store, "t", max_poll_interval_ms=2 * SESSION_MS) as consumer:
        settled(store, [consumer])
        for _ in range(4):
            for _ in range(5):
                clock.now += SESSION_MS // 4
                coordinator(store).run_due()
            consumer.poll()
        assert (epoch(consumer), len(member_ids(store))) == (1, 1)


def test_a_member_that_gives_nothing_up_in_time_is_removed(store: segstore.Store, clock: Monotonic) -> None:
    fill(store, partitions=2)

    def hangs(how: str, partitions: Any) -> None:
        if how == "revoked":
            clock.now += MAX_POLL_MS
            coordinator(store).run_due()
            take_turns([second])
            seen.append(owned(second))

    seen: list[set[int]] = []
    listener = Told(hangs)
    first, second = ours(store), ours(store, "t", max_poll_interval_ms=10 * MAX_POLL_MS)
    first.subscribe(["t"], listener=listener)
    settled(store, [first])
    take_turns([second])
    with suppress(CommitFailedError):
        take_turns([first], 1)
    assert seen == [{0, 1}]
    settled(store, [first, second])
    assert [how for how, _ in listener.told] == ["assigned", "revoked", "lost", "assigned"]


def test_a_slow_disk_does_not_keep_a_member_out_for_ever(
    store: segstore.Store, clock: Monotonic, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store)
    beats, slow = [], [2 * MAX_POLL_MS]
    beat, write = ConsumerMembership.heartbeat, GroupOffsets.write_consumer

    def counted(self: ConsumerMembership, *arguments: Any) -> Any:
        beats.append(arguments)
        assert len(beats) <= 20, "it joins again and again within one poll"
        return beat(self, *arguments)

    def slowly(self: GroupOffsets, *arguments: Any, **named: Any) -> None:
        clock.now += slow.pop() if slow else 0
        write(self, *arguments, **named)

    monkeypatch.setattr(ConsumerMembership, "heartbeat", counted)
    monkeypatch.setattr(GroupOffsets, "write_consumer", slowly)
    with ours(store, "t") as consumer:
        assert until(consumer.poll)
        assert len(member_ids(store)) == 1
    assert slow == []


def test_a_member_that_was_dropped_gives_its_partitions_back(store: segstore.Store, clock: Monotonic) -> None:
    fill(store, partitions=2)
    dropped, other = ours(store, "t"), ours(store, "t")
    settled(store, [dropped, other])
    del dropped
    gc.collect()
    coordinator(store).run_due()
    settled(store, [other])
    assert owned(other) == {0, 1}


def test_members_of_a_process_that_died_are_removed_when_the_group_is_asked(
    store: segstore.Store, store_dir: Path, tmp_path: Path
) -> None:
    fill(store, partitions=2)
    dead, static = ours(store, "t"), ours(store, "t", group_instance_id="i")
    settled(store, [dead, static])
    wire = Member(store, "w", client_host="/127.0.0.1").join()
    settled(store, [dead, static])
    had = owned(static)
    shutil.copytree(store_dir, tmp_path / "copy")
    with (
        segstore.open(tmp_path / "copy", files=Unsynced()) as copy,
        ours(copy, "t", group_instance_id="i") as back,
    ):
        back.poll()
        assert owned(back) >= had
        assert set(member_ids(copy)) == {wire.member_id, back.group_metadata().member_id}
    assert segstore.check(tmp_path / "copy") == []


def test_a_member_that_can_not_write_that_it_leaves_is_removed_later(
    store: segstore.Store, clock: Monotonic, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store)
    consumer = ours(store, "t", enable_auto_commit=False)
    settled(store, [consumer])

    def fail(*_: Any, **__: Any) -> None:
        raise StorageError(28, "no space", "x")

    with monkeypatch.context() as full:
        full.setattr(GroupOffsets, "write_consumer", fail)
        consumer.close()
        assert len(member_ids(store)) == 1
        clock.now += 10_000
        coordinator(store).run_due()
        assert len(member_ids(store)) == 1
    clock.now += 10_000
    coordinator(store).run_due()
    assert is_empty(store)


# --- static members -------------------------------------------------------------------------------


def closed(consumer: Consumer, store: segstore.Store, clock: Monotonic) -> None:
    consumer.close()


def unsubscribed(consumer: Consumer, store: segstore.Store, clock: Monotonic) -> None:
    consumer.unsubscribe()


def too_late(consumer: Consumer, store: segstore.Store, clock: Monotonic) -> None:
    clock.now += MAX_POLL_MS
    coordinator(store).run_due()


Away = Callable[[Consumer, segstore.Store, Monotonic], None]


AWAY: dict[str, Away] = {"closed": closed, "unsubscribed": unsubscribed, "too late": too_late}


@pytest.mark.parametrize("name", AWAY)
def test_a_static_members_place_is_kept_while_it_is_away(
    store: segstore.Store, clock: Monotonic, name: str
) -> None:
    fill(store, partitions=4)
    other = ours(store, "t", max_poll_interval_ms=10 * SESSION_MS)
    static = ours(store, "t", group_instance_id="i")
    settled(store, [other, static])
    had = owned(static)
    AWAY[name](static, store, clock)
    take_turns([other])
    assert (owned(other) & had, epoch(other)) == (set(), 2)  # nothing was handed out anew
    with ours(store, "t", group_instance_id="i") as back:
        back.poll()
        assert owned(back) == had
        take_turns([other])
    clock.now += SESSION_MS
    settled(store, [other])
    assert owned(other) == {0, 1, 2, 3}


def test_a_static_member_that_was_dropped_may_be_replaced_at_once(store: segstore.Store) -> None:
    fill(store, partitions=2)
    static = ours(store, "t", group_instance_id="i")
    settled(store, [static])
    del static
    gc.collect()
    with ours(store, "t", group_instance_id="i") as back:
        back.poll()
        assert owned(back) == {0, 1}


def test_an_instance_id_has_one_owner(store: segstore.Store) -> None:
    fill(store)
    first, second = (ours(store, "t", group_instance_id="i") for _ in range(2))
    settled(store, [first])
    for _ in range(2):
        with pytest.raises(UnreleasedInstanceIdError, match="'i'"):
            second.poll()
    first.close()
    settled(store, [second])
    assert owned(second) == {0}


def test_a_static_member_whose_place_was_taken_has_lost_all(store: segstore.Store) -> None:
    fill(store)
    told = Told()
    first = ours(store, group_instance_id="i")
    first.subscribe(["t"], listener=told)
    settled(store, [first])
    wire = Member(store, "w", instance_id="i")
    who = first.group_metadata()
    Member(store, who.member_id, instance_id="i").leave(-2)  # as a second client with its ids would
    wire.join()
    with pytest.raises(FencedInstanceIdError):
        take_turns([first])
    assert told.told == [("assigned", {0}), ("lost", {0})]
    with pytest.raises(UnreleasedInstanceIdError):
        first.poll()
