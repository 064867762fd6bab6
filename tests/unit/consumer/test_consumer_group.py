"""Consumers in the process that are members of consumer groups (KIP-848): `group_protocol="consumer"`. What
both protocols promise is in test_group.py, by KINDS.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from consumers import append, fill, tp
from group_members import Member, info
from groups import (
    CONSUMER,
    MAX_POLL_MS,
    Monotonic,
    Told,
    Unsynced,
    coordinator,
    every,
    is_empty,
    member,
    member_ids,
    offsets,
    owned,
    settled,
    take_turns,
)
from waiting import PATIENCE, until

import segstore
from segstore.client.consumer import Consumer
from segstore.coordinator.group.consumers.membership import ConsumerMembership
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.structs import OffsetAndMetadata
from segstore.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    GroupNotFoundError,
    InvalidArgumentError,
    InvalidRegularExpressionError,
    InvalidTypeError,
    ReadOnlyError,
    StaleMemberEpochError,
    StorageError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)

CONFIG = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
SESSION_MS = 45_000


@pytest.fixture
def clock() -> Monotonic:
    return Monotonic()


@pytest.fixture
def store(store_dir: Path, clock: Monotonic, request: pytest.FixtureRequest) -> Iterator[segstore.Store]:
    """A store with these settings besides CONFIG, if the test gives some."""
    more = getattr(request, "param", {})
    with segstore.open(store_dir, config=CONFIG | more, files=Unsynced()) as store:
        coordinator(store, clock)
        yield store


def ours(store: segstore.Store, *topics: str, **settings: Any) -> Consumer:
    return member(store, *topics, **{**CONSUMER, **settings})


def epoch(consumer: Consumer) -> int:
    return consumer.group_metadata().generation_id


# --- a rebalance ---------------------------------------------------------------------------------


def test_only_what_moves_is_given_up_and_it_is_committed_first(store: segstore.Store) -> None:
    fill(store, partitions=4, records=8)
    told = Told(lambda how, parts: committed.append((how, dict(offsets(store).fetch("g")))))
    committed: list[Any] = []
    first = ours(store)
    first.subscribe(["t"], listener=told)
    assert len(settled(store, [first]) + take_turns([first])) == 32
    assert told.told == [("assigned", {0, 1, 2, 3})]
    assert (epoch(first), first.group_metadata().state) == (1, "<stable>")
    second = ours(store, "t")
    second.poll()
    assert (second.assignment(), epoch(second)) == (set(), 2)
    append(store, 1, partition=min(owned(first)))
    settled(store, [first, second])
    moved = owned(second)
    assert len(moved) == 2
    assert told.told[1:] == [("revoked", moved)]
    assert {part.partition for part in committed[1][1]} >= moved  # before the listener was told
    assert take_turns([second]) == []
    assert (epoch(first), epoch(second)) == (2, 2)


def test_what_is_given_up_is_kept_until_the_listener_is_done(store: segstore.Store) -> None:
    fill(store, partitions=2)
    seen: list[set[int]] = []

    def others(how: str, partitions: Any) -> None:
        if how == "revoked":
            take_turns([second], 3)
            seen.append(owned(second))
            first.commit(
                {tp(n): OffsetAndMetadata(5) for n in partitions and {p.partition for p in partitions}}
            )

    first, second = ours(store), ours(store, "t")
    first.subscribe(["t"], listener=Told(others))
    settled(store, [first])
    settled(store, [first, second])
    assert seen == [set()]
    assert {at.offset for at in offsets(store).fetch("g").values()} == {5}


def test_a_member_says_who_it_is(store: segstore.Store) -> None:
    fill(store)
    settings = {"client_id": "app", "client_rack": "r1", "group_remote_assignor": "range"}
    with ours(store, "t", max_poll_interval_ms=7_000, **settings) as consumer:
        settled(store, [consumer])
        (found,) = info(store).members
        said = found.subscription
        assert (said.client_id, said.client_host, said.rack_id) == ("app", "localhost", "r1")
        assert (said.topic_names, said.rebalance_timeout_ms) == ({"t"}, 7_000)
        assert (said.server_assignor, info(store).assignor) == ("range", "range")
        assert consumer.group_metadata() == ("g", 1, found.member_id, None, "<stable>")
    assert is_empty(store)


def test_what_is_measured(store: segstore.Store) -> None:
    fill(store, partitions=2)
    with ours(store, "t") as consumer, ours(store, "t") as other:
        settled(store, [consumer])
        settled(store, [consumer, other])
        found = consumer.metrics()["consumer-coordinator-metrics"]
        assert (found["rebalance-total"], found["assigned-partitions"]) == (2, 1)
        assert (found["failed-rebalance-total"], found["join-total"], found["sync-total"]) == (0, 0, 0)
        assert found["heartbeat-total"] > 0


def test_a_member_that_waits_is_woken_by_each_step(store: segstore.Store) -> None:
    fill(store, partitions=2, records=4)
    first, second = ours(store, "t", enable_auto_commit=False), ours(store, "t")
    settled(store, [first])
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(second.poll(timeout_ms=PATIENCE * 1000)))
    thread.start()
    until(lambda: len(member_ids(store)) == 2)
    first.close()  # the group's clock stands still: no interval is waited for
    thread.join(PATIENCE)
    assert got
    assert sum(map(len, got[0].values())) > 0
    assert second.assignment() == every(store, "t")


def test_a_member_says_nothing_when_another_group_changes(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store)
    consumer = ours(store, "t")
    settled(store, [consumer])
    take_turns([consumer])
    beat, asked = GroupCoordinator.consumer_heartbeat, list[str]()

    def noted(self: GroupCoordinator, group: str, said: Any) -> Any:
        asked.append(group)
        return beat(self, group, said)

    monkeypatch.setattr(GroupCoordinator, "consumer_heartbeat", noted)
    with ours(store, "t", group="other") as other:
        settled(store, [other], "other")
        take_turns([consumer])
    take_turns([consumer])
    assert set(asked) == {"other"}
    fill(store, "u")
    until(lambda: not take_turns([consumer]) and "g" in asked)  # a topic is compared by the coordinator


# --- topics --------------------------------------------------------------------------------------


def test_the_coordinator_matches_a_subscription_pattern(store: segstore.Store) -> None:
    fill(store, "t-1", partitions=2)
    fill(store, "at-1")
    consumer = ours(store)
    consumer.subscribe(pattern=segstore.SubscriptionPattern("t-.*"))
    settled(store, [consumer])
    assert (consumer.assignment(), consumer.subscription()) == (every(store, "t-1"), {"t-1"})
    assert info(store).members[0].subscription.topic_regex == "t-.*"
    fill(store, "t-2")
    until(lambda: take_turns([consumer]) and consumer.assignment() == every(store, "t-1", "t-2"))
    store.delete_topic("t-1")
    until(lambda: not take_turns([consumer]) and consumer.assignment() == every(store, "t-2"))
    assert consumer.subscription() == {"t-2"}
    consumer.unsubscribe()
    assert (consumer.subscription(), is_empty(store)) == (None, True)
    consumer.subscribe(["at-1"])
    settled(store, [consumer])
    assert consumer.assignment() == every(store, "at-1")


REFUSED: dict[str, tuple[dict[str, Any], Any, type[Exception]]] = {
    "no expression": (CONSUMER, segstore.SubscriptionPattern("("), InvalidRegularExpressionError),
    "one of Python's alone": (CONSUMER, segstore.SubscriptionPattern("(?=a)"), InvalidRegularExpressionError),
    "a number": (CONSUMER, segstore.SubscriptionPattern(3), InvalidTypeError),  # type: ignore[arg-type]
    "a classic member": ({}, segstore.SubscriptionPattern("t"), InvalidArgumentError),
    "no member": ({"group_id": None}, segstore.SubscriptionPattern("t"), InvalidArgumentError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_pattern_is_refused_and_nothing_changes(store: segstore.Store, name: str) -> None:
    settings, pattern, error = REFUSED[name]
    fill(store)
    consumer = member(store, "t", **settings)
    with pytest.raises(error):
        consumer.subscribe(pattern=pattern)
    assert consumer.subscription() == {"t"}


def test_a_topic_made_anew_is_lost_and_read_from_its_beginning(store: segstore.Store) -> None:
    fill(store, records=8)
    told = Told()
    consumer = ours(store, auto_commit_interval_ms=0)
    consumer.subscribe(["t"], listener=told)
    assert len(settled(store, [consumer]) + take_turns([consumer])) == 8
    store.delete_topic("t")
    fill(store, records=12)
    assert len(until(lambda: take_turns([consumer]))) == 12
    assert told.told == [("assigned", {0}), ("lost", {0}), ("assigned", {0})]


# --- members that are taken for failed -----------------------------------------------------------


def late(store: segstore.Store, consumer: Consumer, clock: Monotonic) -> None:
    clock.now += MAX_POLL_MS
    coordinator(store).run_due()


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


# --- static members ------------------------------------------------------------------------------


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


# --- commits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("good", [True, False])
def test_a_transaction_commits_with_the_members_epoch(
    store: segstore.Store, clock: Monotonic, good: bool
) -> None:
    fill(store, records=8)
    consumer = ours(store, "t", enable_auto_commit=False)
    settled(store, [consumer])
    with segstore.Producer(store, transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        at = {tp(): OffsetAndMetadata(5)}
        who = consumer.group_metadata()
        if good:
            producer.send_offsets_to_transaction(at, who)
            producer.commit_transaction()
        else:
            late(store, consumer, clock)
            with pytest.raises((CommitFailedError, UnknownMemberIdError)):
                producer.send_offsets_to_transaction(at, who)
            producer.abort_transaction()
    assert offsets(store).fetch("g") == (at if good else {})


def test_a_commit_between_two_polls_counts_for_what_is_kept(store: segstore.Store) -> None:
    fill(store, partitions=2)
    first, second = ours(store, "t", enable_auto_commit=False), ours(store, "t")
    settled(store, [first])
    who = first.group_metadata()
    settled(store, [first, second])
    (kept,), (moved,) = owned(first), owned(second)
    at = OffsetAndMetadata(4)
    coordinator(store).commit(who, {tp(kept): at})
    with pytest.raises(StaleMemberEpochError):
        coordinator(store).commit(who, {tp(moved): at})
    assert offsets(store).fetch("g") == {tp(kept): at}


# --- groups that refuse --------------------------------------------------------------------------


def test_a_store_that_is_open_for_reading_has_no_groups(store: segstore.Store, store_dir: Path) -> None:
    with segstore.open(store_dir, "r") as reader, pytest.raises(ReadOnlyError, match="group_id='g'"):
        ours(reader, "t")


@pytest.mark.parametrize("store", [{"group.consumer.migration.policy": "disabled"}], indirect=True)
def test_a_classic_group_that_may_not_change_refuses_it_until_it_is_empty(store: segstore.Store) -> None:
    fill(store)
    old, new = member(store, "t"), ours(store, "t")
    settled(store, [old])
    for _ in range(2):
        with pytest.raises(GroupNotFoundError, match="classic"):
            new.poll()
    old.close()
    settled(store, [new])
    assert owned(new) == {0}


@pytest.mark.parametrize("store", [{"group.consumer.max.size": 1}], indirect=True)
def test_a_group_is_full(store: segstore.Store) -> None:
    fill(store)
    first, second = ours(store, "t"), ours(store, "t")
    settled(store, [first])
    with pytest.raises(GroupMaxSizeReachedError):
        second.poll()
    second.close()
    first.close()
    assert is_empty(store)


# --- asyncio -------------------------------------------------------------------------------------


def test_an_async_consumer_is_a_member_too(store: segstore.Store) -> None:
    fill(store, partitions=2, records=6)

    async def share() -> set[tuple[int, int]]:
        settings: Any = {**CONSUMER, "group_id": "g", "auto_offset_reset": "earliest"}
        found: set[tuple[int, int]] = set()
        async with (
            segstore.AsyncConsumer(store, "t", **settings) as one,
            segstore.AsyncConsumer(store, "t", **settings) as two,
        ):
            while len(found) < 12 or not (one.assignment() and two.assignment()):
                for each in (one, two):
                    for records in (await each.poll(20)).values():
                        found |= {(record.partition, record.offset) for record in records}
        return found

    assert len(asyncio.run(share())) == 12
    assert is_empty(store)
