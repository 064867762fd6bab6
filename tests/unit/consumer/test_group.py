"""Consumers of a group: who reads what, and what is committed."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from consumers import append, fill, tp
from groups import (
    COOPERATIVE,
    KINDS,
    Told,
    coordinator,
    every,
    member,
    offsets,
    owned,
    settled,
    take_turns,
)
from waiting import PATIENCE, until

import segstore
from segstore.client.consumer import Consumer
from segstore.coordinator.group.classic.member import ClassicGroupState
from segstore.coordinator.structs import OffsetAndMetadata
from segstore.errors import (
    CommitFailedError,
    InvalidTypeError,
    KafkaTimeoutError,
    UnknownTopicOrPartitionError,
)

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
    assert coordinator(store).state("g") is ClassicGroupState.EMPTY


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
        thread = threading.Thread(target=lambda: got.append(consumer.poll(timeout_ms=PATIENCE * 1000)))
        thread.start()
        getattr(producer, end)()
        thread.join()
        assert [r.offset for r in got[0][tp()]] == list(range(first, 10))
        assert consumer.committed(tp()) == (first or None)


def test_no_offset_and_no_reset(store: segstore.Store) -> None:
    fill(store)
    consumer = member(store, "t", auto_offset_reset="none")
    with pytest.raises(segstore.errors.NoOffsetForPartitionError):
        take_turns([consumer])
    offsets(store).commit("g", {tp(): OffsetAndMetadata(7)})
    assert [r.offset for r in take_turns([consumer])] == [7, 8, 9]
