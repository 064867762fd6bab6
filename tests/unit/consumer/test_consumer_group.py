"""Consumers in the process that are members of consumer groups (KIP-848): `group_protocol="consumer"`. What
both protocols promise is in test_group.py, by KINDS.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from consumer_members import clock as clock
from consumer_members import epoch, late, ours
from consumer_members import store as store
from consumers import append, fill, tp
from group_members import info
from groups import (
    CONSUMER,
    Monotonic,
    Told,
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
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.structs import OffsetAndMetadata
from segstore.errors import (
    CommitFailedError,
    GroupMaxSizeReachedError,
    GroupNotFoundError,
    InvalidArgumentError,
    InvalidRegularExpressionError,
    InvalidTypeError,
    ReadOnlyError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)

# --- a rebalance ----------------------------------------------------------------------------------


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


# --- topics ---------------------------------------------------------------------------------------


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


# --- commits --------------------------------------------------------------------------------------


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


# --- groups that refuse ---------------------------------------------------------------------------


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


# --- asyncio --------------------------------------------------------------------------------------


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
