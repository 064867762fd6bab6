"""How a share consumer's records are acknowledged, and what becomes of it: modes, renewal, results (rules Q1
to Q4 of docs/queues.md).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from consumers import append, tp
from share_consumers import ACCEPT, REJECT, RELEASE, RENEW, counts, offsets, opened, set_group, state, worker
from share_consumers import store as store

import segstore
from segstore import ShareConsumer
from segstore.errors import IllegalStateError, InvalidRecordStateError, InvalidTypeError, WakeupError

# --- Q1: modes ------------------------------------------------------------------------------------


def test_q1_implicit_a_poll_accepts_the_one_before(store: segstore.Store) -> None:
    with worker(store, share_acknowledgement_mode="implicit") as queue:
        assert len(queue.poll_flat()) == 10
        assert state(store) == (0, 10)
        assert queue.poll_flat() == []
        assert state(store)[1] == 0


CLOSERS: dict[str, Callable[[ShareConsumer], object]] = {
    "poll": lambda queue: queue.poll(),
    "commit_sync": lambda queue: queue.commit_sync(),
    "commit_async": lambda queue: queue.commit_async(),
    "close": lambda queue: queue.close(),
}


@pytest.mark.parametrize("name", CLOSERS)
def test_q1_implicit_each_of_these_accepts(store: segstore.Store, name: str) -> None:
    with worker(store, share_acknowledgement_mode="implicit") as queue:
        queue.poll()
        CLOSERS[name](queue)
        assert state(store)[1] == 0


@pytest.mark.parametrize("name", CLOSERS)
def test_q2_explicit_each_of_these_sends_what_is_noted(store: segstore.Store, name: str) -> None:
    with worker(store) as queue:
        for record in queue.poll_flat():
            queue.acknowledge(record, ACCEPT if record.offset < 7 else RELEASE)
        assert state(store)[1] == 10
        CLOSERS[name](queue)
        assert state(store)[1] == 3


def test_q1_explicit_a_poll_needs_an_answer_for_each_record(store: segstore.Store) -> None:
    with worker(store) as queue:
        records = queue.poll_flat()
        for record in records[1:]:
            queue.acknowledge(record)
        with pytest.raises(IllegalStateError) as refused:
            queue.poll()
        assert str(refused.value) == "All records must be acknowledged in explicit acknowledgement mode."
        queue.commit_sync()
        with pytest.raises(IllegalStateError, match="All records"):
            queue.poll_flat()
        queue.acknowledge(records[0])
        assert queue.poll() == {}


def test_q1_implicit_mode_takes_no_acknowledgements(store: segstore.Store) -> None:
    with worker(store, share_acknowledgement_mode="implicit") as queue:
        (record, *_) = queue.poll_flat()
        for call in (
            lambda: queue.acknowledge(record),
            lambda: queue.acknowledge_offset("t", 0, 0, ACCEPT),
        ):
            with pytest.raises(IllegalStateError, match='share_acknowledgement_mode="explicit"'):
                call()


def test_q1_records_of_an_earlier_poll_are_refused(store: segstore.Store) -> None:
    with worker(store, max_poll_records=1) as queue:
        first = queue.poll_flat()
        for record in first:
            queue.acknowledge(record)
        assert queue.poll_flat() != []
        with pytest.raises(IllegalStateError, match="the last poll did not give it"):
            queue.acknowledge(first[0])


def test_a_record_is_acknowledged_by_its_place(store: segstore.Store) -> None:
    with worker(store) as queue:
        queue.poll()
        for offset in range(10):
            queue.acknowledge_offset("t", 0, offset, REJECT if offset else ACCEPT)
        assert queue.commit_sync() == {tp(): None}
        assert queue.poll() == {}


@pytest.mark.parametrize(
    "arguments", [(tp(), 5), (tp(), 5, ACCEPT), ("t", 0, 5, ACCEPT), (7,)], ids=lambda each: repr(each)[:20]
)
def test_a_place_in_place_of_a_record_is_refused_with_a_hint(
    store: segstore.Store, arguments: tuple[Any, ...]
) -> None:
    with worker(store) as queue:
        queue.poll()
        with pytest.raises(InvalidTypeError, match=r"acknowledge_offset\(topic, partition, offset, type\)"):
            queue.acknowledge(*arguments)


# --- Q3: renewal ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sent_by", ["poll", "commit_sync"])
def test_q3_renewed_records_come_again_with_the_same_count(store: segstore.Store, sent_by: str) -> None:
    with worker(store) as queue:
        for _ in range(3):
            records = queue.poll_flat()
            for record in records:
                queue.acknowledge(record, RENEW if record.offset in (2, 5) else ACCEPT)
            if sent_by == "commit_sync":
                assert queue.commit_sync() == {tp(): None}
        renewed = queue.poll_flat()
        assert counts(renewed) == {2: 1, 5: 1}
        append(store, 2)
        for record in renewed:
            queue.acknowledge(record, RENEW)
        assert offsets(queue.poll_flat()) == [2, 5]
        for offset in (2, 5):
            queue.acknowledge_offset("t", 0, offset)
        assert offsets(queue.poll_flat()) == [10, 11]


def test_q32_a_group_may_refuse_renewal(store: segstore.Store) -> None:
    set_group(store, **{"share.renew.acknowledge.enable": "false"})
    with worker(store) as queue:
        for record in queue.poll_flat():
            queue.acknowledge(record, RENEW if record.offset == 3 else ACCEPT)
        (error,) = queue.commit_sync().values()
        assert isinstance(error, InvalidRecordStateError)
        assert "share.renew.acknowledge.enable" in str(error)
        assert queue.poll() == {}
        assert state(store)[1] == 10


# --- Q4: results ----------------------------------------------------------------------------------


def test_q4_a_partition_fails_as_a_whole(store_dir: Path) -> None:
    """Its locks are gone: those of the other partition are not."""
    with opened(store_dir, partitions=2) as store, worker(store) as queue:
        for records in queue.poll().values():
            for record in records:
                queue.acknowledge(record)
        queue._coordinator.release("g", queue._membership.member_id, [queue._acks.held[tp(1)].at])
        found = queue.commit_sync()
        assert found[tp(0)] is None
        assert isinstance(found[tp(1)], InvalidRecordStateError)
        assert {at: counts(records) for at, records in queue.poll().items()} == {
            tp(1): dict.fromkeys(range(10), 2)
        }


def test_nothing_noted_nothing_sent(store: segstore.Store) -> None:
    with worker(store) as queue:
        assert queue.commit_sync() == {}
        queue.poll()
        assert queue.commit_sync() == {}


def test_q4_the_callback_hears_of_all_that_was_sent(store: segstore.Store) -> None:
    told: list[Any] = []
    with worker(store) as queue:
        queue.set_acknowledgement_commit_callback(lambda *heard: told.append(heard))
        for record in queue.poll_flat():
            if record.offset == 4:
                queue.commit_async()
                assert told == []
            queue.acknowledge(record)
        queue.poll()
        assert told == [({tp(): {0, 1, 2, 3}}, None), ({tp(): {4, 5, 6, 7, 8, 9}}, None)]
        queue.set_acknowledgement_commit_callback(None)
    assert len(told) == 2


@pytest.mark.parametrize("name", ["poll", "commit_sync", "close"])
def test_what_the_callback_raises_reaches_the_application(store: segstore.Store, name: str) -> None:
    def callback(*_: Any) -> None:
        raise ZeroDivisionError

    queue = worker(store, share_acknowledgement_mode="implicit")
    queue.poll()
    queue.set_acknowledgement_commit_callback(callback)
    with pytest.raises(ZeroDivisionError):
        CLOSERS[name](queue)
    assert state(store)[1] == 0
    queue.close()
    assert queue._is_ended()


def test_the_callback_may_only_wake(store: segstore.Store) -> None:
    refused: list[str] = []

    def callback(*_: Any) -> None:
        for name in ("poll", "commit_sync", "close"):
            try:
                CLOSERS[name](queue)
            except IllegalStateError as error:
                refused.append(str(error))
        queue.wakeup()

    with worker(store, share_acknowledgement_mode="implicit") as queue:
        queue.set_acknowledgement_commit_callback(callback)
        queue.poll()
        queue.commit_sync()
        assert len(refused) == 3
        assert all("may not call the share consumer" in each for each in refused)
        with pytest.raises(WakeupError):
            queue.poll()
