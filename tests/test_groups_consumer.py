"""Consumers of a group: who reads what, what is committed, what happens when one is gone or late."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from consumers import append, fill, tp, until
from groups import (
    HEARTBEAT_MS,
    MAX_POLL_MS,
    SESSION_MS,
    Monotonic,
    coordinator,
    every,
    member,
    offsets,
    owned,
    settled,
    take_turns,
)
from stores import in_child

import segstore
from segstore.client.aio import AsyncConsumer
from segstore.client.consumer import Consumer, ConsumerRebalanceListener
from segstore.client.groups.membership import State
from segstore.client.structs import OffsetAndMetadata
from segstore.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    InvalidTypeError,
    KafkaTimeoutError,
    ReadOnlyError,
    RebalanceInProgressError,
    UnknownTopicOrPartitionError,
)

COOPERATIVE = {"partition_assignment_strategy": ["cooperative-sticky"]}
KINDS = {"eager": {}, "cooperative": COOPERATIVE}


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, config={"offsets.topic.num.partitions": 2}) as store:
        yield store


@pytest.fixture
def clock(store: segstore.Store) -> Monotonic:
    clock = Monotonic()
    coordinator(store, clock)
    return clock


class Told(ConsumerRebalanceListener):
    """Writes down what it is told, and may do something then."""

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


# --- sharing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_one_group_shares_and_several_see_all(store: segstore.Store, kind: str) -> None:
    fill(store, partitions=4, records=30)
    ours = [member(store, "t", **KINDS[kind]) for _ in range(3)]
    other = member(store, "t", group="other", **KINDS[kind])
    records = settled(store, ours) + take_turns(ours)
    assert {(r.partition, r.offset) for r in records} == {(p, o) for p in range(4) for o in range(30)}
    assert sorted(len(c.assignment()) for c in ours) == [1, 1, 2]
    assert set.union(*(c.assignment() for c in ours)) == every(store, "t")
    assert len(settled(store, [other], "other") + take_turns([other])) == 120


@pytest.mark.parametrize("kind", KINDS)
def test_members_beyond_the_partitions_idle_and_take_over(store: segstore.Store, kind: str) -> None:
    fill(store, partitions=2)
    members = [member(store, "t", **KINDS[kind]) for _ in range(3)]
    settled(store, members)
    idle = next(c for c in members if not c.assignment())
    busy = next(c for c in members if c.assignment())
    busy.close()
    members.remove(busy)
    settled(store, members)
    assert [len(c.assignment()) for c in members] == [1, 1]
    append(store, 1, partition=min(owned(idle)))
    assert len(take_turns([idle], 2)) == 1


def test_a_member_that_comes_takes_only_what_moves(store: segstore.Store) -> None:
    fill(store, partitions=4)
    told = Told()
    first = member(store, **COOPERATIVE)
    first.subscribe(["t"], listener=told)
    settled(store, [first])
    assert told.told == [("assigned", {0, 1, 2, 3})]
    second = member(store, "t", **COOPERATIVE)
    second.poll()
    append(store, 1, partition=0)
    assert first.assignment() == every(store, "t")  # while the other waits, nothing stops
    settled(store, [first, second])
    moved = owned(second)
    assert len(moved) == 2
    assert told.told[1:] == [("revoked", moved)]


def test_an_eager_member_gives_up_all_before(store: segstore.Store) -> None:
    fill(store, partitions=4)
    told = Told()
    first = member(store)
    first.subscribe(["t"], listener=told)
    settled(store, [first])
    second = member(store, "t")
    settled(store, [first, second])
    assert told.told == [
        ("assigned", {0, 1, 2, 3}),
        ("revoked", {0, 1, 2, 3}),
        ("assigned", owned(first)),
    ]
    assert len(owned(first)) == len(owned(second)) == 2


def together(members: list[Consumer]) -> set[Any]:
    """What members have after some turns."""
    take_turns(members, 2)
    return set.union(*(each.assignment() for each in members))


@pytest.mark.parametrize("kind", KINDS)
def test_new_partitions_topics_and_subscriptions_are_handed_out(store: segstore.Store, kind: str) -> None:
    fill(store, partitions=1)
    members = [member(store, **KINDS[kind]) for _ in range(2)]
    for each in members:
        each.subscribe(pattern="t.*")
    settled(store, members)
    store.add_partitions("t", 3)
    fill(store, "t2", partitions=2)
    until(lambda: together(members) == every(store, "t", "t2"))
    store.delete_topic("t2")
    until(lambda: together(members) == every(store, "t"))
    members[0].unsubscribe()
    assert members[0].assignment() == set()
    until(lambda: together(members[1:]) == every(store, "t"))
    members[0].subscribe(["t"])
    until(lambda: together(members) == every(store, "t") and members[0].assignment())


def test_a_topic_made_anew_is_read_from_its_beginning(store: segstore.Store) -> None:
    fill(store, records=8)
    consumer = member(store, "t", auto_commit_interval_ms=0, **COOPERATIVE)
    assert len(settled(store, [consumer]) + take_turns([consumer])) == 8
    assert consumer.committed(tp()) == 8
    store.delete_topic("t")
    fill(store, records=12)
    assert len(until(lambda: take_turns([consumer]))) == 12


# --- commits ---------------------------------------------------------------------------------


class Heard:
    def __init__(self) -> None:
        self.offsets: list[Any] = []

    def on_commit(self, committed: Any) -> None:
        self.offsets.append({each.partition: at.offset for each, at in committed.items()})


def test_commits_of_all_kinds(store: segstore.Store) -> None:
    fill(store, records=12)
    heard, called = Heard(), []
    consumer = member(store, "t", interceptors=[heard], enable_auto_commit=False, max_poll_records=4)
    settled(store, [consumer])
    assert consumer.committed(tp()) is None
    consumer.commit()
    assert consumer.committed(tp()) == 4
    consumer.poll()
    future = consumer.commit_async(callback=lambda at, error: called.append((at[tp()].offset, error)))
    assert (future.succeeded(), called) == (True, [])
    consumer.poll(max_records=1)
    assert called == [(8, None)]
    consumer.commit({tp(): OffsetAndMetadata(3, "a note")})
    assert consumer.committed(tp(), metadata=True) == OffsetAndMetadata(3, "a note")
    assert heard.offsets == [{0: 4}, {0: 8}, {0: 3}]
    failed = consumer.commit_async({tp(9): OffsetAndMetadata(3)})
    assert isinstance(failed.exception, UnknownTopicOrPartitionError)
    for wrong in ([], {tp(): 3}, {"t": OffsetAndMetadata(3)}):
        with pytest.raises(InvalidTypeError):
            consumer.commit(wrong)
    assert consumer.metrics()["consumer-coordinator-metrics"]["commit-total"] == 3


def test_commits_by_itself(store: segstore.Store) -> None:
    fill(store, records=12)
    heard = Heard()
    settings = {"max_poll_records": 4, "interceptors": [heard]}
    with member(store, "t", auto_commit_interval_ms=0, **settings) as consumer:
        settled(store, [consumer])
        consumer.poll()
        assert heard.offsets == [{0: 4}]
        consumer.poll()
        consumer.poll()
        consumer.poll()
        assert heard.offsets == [{0: 4}, {0: 8}, {0: 12}]  # and not what is committed already
    append(store, 4)
    with member(store, "t", **settings) as consumer:
        assert [r.offset for r in settled(store, [consumer])] == [12, 13, 14, 15]
        assert consumer.committed(tp()) == 12
    assert heard.offsets[3:] == [{0: 16}]
    append(store, 4)
    consumer = member(store, "t", **settings)
    settled(store, [consumer])
    consumer.close(autocommit=False)
    assert offsets(store).fetch("g")[tp()].offset == 16


def test_what_was_read_is_committed_before_it_moves(store: segstore.Store) -> None:
    fill(store, partitions=2, records=6)
    for kind in KINDS.values():
        seen = []
        first = member(store, "t", group=str(kind), **kind)
        seen += settled(store, [first], str(kind)) + take_turns([first])
        second = member(store, "t", group=str(kind), **kind)
        seen += settled(store, [first, second], str(kind)) + take_turns([first, second])
        assert len(second.assignment()) == 1
        assert len(seen) == 12


def test_a_listener_commits_and_seeks(store: segstore.Store) -> None:
    fill(store, partitions=2, records=6)

    def do(how: str, partitions: Any) -> None:
        if how == "revoked":
            first.commit()
        elif len(listener.told) == 1:
            first.seek(tp(1), 5)

    listener = Told(do)
    first = member(store, enable_auto_commit=False)
    first.subscribe(["t"], listener=listener)
    got = settled(store, [first]) + take_turns([first])
    assert sorted((r.partition, r.offset) for r in got) == [*((0, i) for i in range(6)), (1, 5)]
    second = member(store, "t")
    assert settled(store, [first, second]) + take_turns([first, second]) == []


def test_a_listener_that_fails_is_heard_and_the_group_goes_on(store: segstore.Store) -> None:
    fill(store, partitions=2)

    def fail(how: str, partitions: Any) -> None:
        raise ZeroDivisionError(how)

    listener = Told(fail)
    consumer = member(store)
    consumer.subscribe(["t"], listener=listener)
    with pytest.raises(ZeroDivisionError, match="assigned"):
        take_turns([consumer])
    assert consumer.assignment() == every(store, "t")
    assert len(take_turns([consumer])) == 20
    with pytest.raises(ZeroDivisionError, match="revoked"):
        consumer.close()
    assert coordinator(store).state("g") is State.EMPTY


def test_without_membership_a_group_keeps_offsets(store: segstore.Store) -> None:
    fill(store, records=8)
    consumer = member(store, enable_auto_commit=False)
    consumer.assign([tp()])
    assert len(take_turns([consumer])) == 8
    consumer.commit()
    again = member(store, auto_commit_interval_ms=0)
    again.assign([tp()])
    assert take_turns([again]) == []
    append(store, 4)
    assert len(take_turns([again])) == 4
    assert again.committed(tp()) == 12
    subscribed = member(store, "t", enable_auto_commit=False)
    settled(store, [subscribed])
    with pytest.raises(CommitFailedError, match="has members, and only they commit"):
        consumer.commit()


@pytest.mark.parametrize(("end", "first"), [("commit_transaction", 7), ("abort_transaction", 0)])
def test_an_offset_that_a_transaction_may_change_is_waited_for(
    store: segstore.Store, end: str, first: int
) -> None:
    fill(store)
    with segstore.Producer(store, transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({tp(): OffsetAndMetadata(7)}, "g")
        consumer = member(store, isolation_level="read_committed", enable_auto_commit=False)
        consumer.assign([tp()])
        assert take_turns([consumer]) == []
        with pytest.raises(KafkaTimeoutError, match="a transaction over the offset"):
            consumer.committed(tp(), timeout_ms=1)
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.append(consumer.poll(timeout_ms=20_000)))
        thread.start()
        getattr(producer, end)()
        thread.join(10)
        assert [r.offset for r in got[0][tp()]] == list(range(first, 10))
        assert consumer.committed(tp()) == (first or None)


def test_no_offset_and_no_reset(store: segstore.Store) -> None:
    fill(store)
    consumer = member(store, "t", auto_offset_reset="none")
    with pytest.raises(segstore.errors.NoOffsetForPartitionError):
        take_turns([consumer])
    offsets(store).commit("g", {tp(): OffsetAndMetadata(7)})
    assert [r.offset for r in take_turns([consumer])] == [7, 8, 9]


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
        coordinator(store).settle()
        other.poll()
    settled(store, [other])
    assert other.assignment() == every(store, "t")
    with pytest.raises(CommitFailedError, match="max_poll_interval_ms=30000"):
        late.commit()
    with pytest.raises(segstore.errors.UnknownMemberIdError):
        coordinator(store).validate(stale)
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
    coordinator(store).settle()
    assert coordinator(store).state("g") is State.EMPTY
    settled(store, [late])
    assert told.told[-2:] == [("lost", {0}), ("assigned", {0})]
    assert late.group_metadata().generation_id > generation + 1


def test_one_that_is_gone_without_a_word_is_out_after_its_session(
    store: segstore.Store, clock: Monotonic
) -> None:
    fill(store, partitions=2)
    gone, other = member(store, "t"), member(store, "t")
    settled(store, [gone, other])
    alive = weakref.ref(gone)
    del gone
    gc.collect()
    assert alive() is None
    clock.now += SESSION_MS - 1
    take_turns([other])
    assert len(other.assignment()) == 1
    clock.now += 1
    coordinator(store).settle()
    settled(store, [other])
    assert len(other.assignment()) == 2


def test_a_member_that_waits_in_poll_stays_alive(store: segstore.Store) -> None:
    fill(store)
    consumer = member(store, "t", max_poll_interval_ms=90, heartbeat_interval_ms=10)
    settled(store, [consumer])
    generation = consumer.group_metadata().generation_id
    consumer.poll(timeout_ms=300)
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
    coordinator(store).settle()
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


# --- again, and elsewhere ----------------------------------------------------------------------


def test_killed_between_append_and_commit(store_dir: Path) -> None:
    def run(tell: Any) -> None:
        with segstore.open(store_dir) as store:
            fill(store, records=8)
            consumer = member(store, "t", enable_auto_commit=False, max_poll_records=4)
            settled(store, [consumer])
            consumer.commit()
            read = [r.offset for records in consumer.poll().values() for r in records]
            tell(f"{read} {consumer.group_metadata().generation_id}")
            append(store, 4)
            import os
            import signal

            os.kill(os.getpid(), signal.SIGKILL)

    signal_, lines = in_child(run)
    assert (signal_, lines) == (9, ["[4, 5, 6, 7] 1"])
    with segstore.open(store_dir) as store, member(store, "t") as consumer:
        assert [r.offset for r in settled(store, [consumer]) + take_turns([consumer])] == list(range(4, 12))
        assert consumer.group_metadata().generation_id == 2


def test_reopened(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        fill(store, partitions=2)
        static, other = member(store, "t", group_instance_id="x"), member(store, "t", group_instance_id="y")
        settled(store, [static, other])
        had, generation = static.assignment(), static.group_metadata().generation_id
    with segstore.open(store_dir) as store:
        static = member(store, "t", group_instance_id="x")
        take_turns([static], 1)
        assert static.assignment() == had
        assert static.group_metadata().generation_id == generation
        clock = Monotonic()
        clock.now = time.monotonic() * 1000 + SESSION_MS - HEARTBEAT_MS
        coordinator(store, clock).settle()
        clock.now += 2 * HEARTBEAT_MS
        coordinator(store).settle()
        settled(store, [static])
        assert static.assignment() == every(store, "t")
    static.close()


def test_a_closed_store_ends_its_groups(store: segstore.Store) -> None:
    fill(store)
    consumer = member(store, "t", enable_auto_commit=False)
    settled(store, [consumer])
    store.close()
    with pytest.raises(segstore.StoreClosedError):
        consumer.poll()


# --- threads -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_threads_share_while_members_come_and_go(store: segstore.Store, kind: str) -> None:
    fill(store, partitions=4, records=200)
    seen, failed, stop = set(), [], threading.Event()

    def work(rounds: int) -> None:
        try:
            with member(store, "t", auto_commit_interval_ms=0, **KINDS[kind]) as consumer:
                while rounds and not stop.is_set():
                    for records in consumer.poll(timeout_ms=20, max_records=7).values():
                        seen.update((r.partition, r.offset) for r in records)
                    rounds -= 1
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in (10_000, 10_000, 5, 10, 20)]
    [thread.start() for thread in threads]
    until(lambda: len(seen) == 800 or failed)
    stop.set()
    [thread.join() for thread in threads]
    assert not failed
    assert coordinator(store).state("g") is State.EMPTY
    assert {each: at.offset for each, at in offsets(store).fetch("g").items()} == dict.fromkeys(
        every(store, "t"), 200
    )


def test_a_stable_group_leaves_its_coordinator_alone(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, partitions=2)
    members = [member(store, "t") for _ in range(2)]
    settled(store, members)
    take_turns(members, 2)
    found = coordinator(store)
    asked: list[str] = []
    for name in ("join", "sync", "heartbeat", "leave", "commit"):
        monkeypatch.setattr(found, name, lambda *_, name=name: asked.append(name))
    nudges: list[int] = []
    monkeypatch.setattr(store, "_nudge", lambda: nudges.append(1))
    looks: list[int] = []
    poll = members[0]._coordination.poll
    monkeypatch.setattr(members[0]._coordination, "poll", lambda: [looks.append(1), poll()])
    members[0].poll(timeout_ms=100)
    take_turns(members, 1000)
    assert (asked, nudges) == ([], [])
    assert len(looks) <= 1000 + 10
    for each in members:
        each._coordination._seat.member_id = ""  # the patched coordinator is not told that they leave


def test_a_waiting_member_is_woken(store: segstore.Store) -> None:
    fill(store, partitions=2, records=4)
    first, second = member(store, "t", max_poll_records=1), member(store, "t")
    settled(store, [first])
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(second.poll(timeout_ms=20_000)))
    thread.start()
    until(lambda: coordinator(store).state("g") is State.PREPARING_REBALANCE)
    until(lambda: take_turns([first], 1) == [] and bool(second._subscription.states) and got)
    thread.join()
    assert got[0]


def test_asyncio(store: segstore.Store) -> None:
    fill(store, partitions=2, records=10)

    async def read(consumer: AsyncConsumer, seen: set[Any]) -> None:
        async for record in consumer:
            seen.add((record.partition, record.offset))

    async def main() -> None:
        settings = {"group_id": "g", "auto_offset_reset": "earliest", "consumer_timeout_ms": 500}
        one, two = (AsyncConsumer(store, "t", **settings) for _ in range(2))
        seen: set[Any] = set()
        await asyncio.gather(read(one, seen), read(two, seen))
        assert seen == {(p, o) for p in range(2) for o in range(10)}
        assert await one.assignment() | await two.assignment() == every(store, "t")
        await one.commit()
        await asyncio.gather(one.close(), two.close())

    asyncio.run(main())
    assert {at.offset for at in offsets(store).fetch("g").values()} == {10}


def test_metrics_have_kafkas_names(store: segstore.Store) -> None:
    fill(store)
    consumer: Consumer = member(store, "t")
    settled(store, [consumer])
    measured = consumer.metrics()["consumer-coordinator-metrics"]
    assert measured["assigned-partitions"] == 1
    assert (measured["join-total"], measured["sync-total"], measured["rebalance-total"]) == (1, 1, 1)
    assert measured["failed-rebalance-total"] == 0
    assert measured["last-rebalance-seconds-ago"] >= 0
    assert member(store, metrics_enabled=False).metrics() == {}
