"""What a share consumer promises its application, by the rules of docs/queues.md."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from consumers import LONG_MS, append, tp
from share_consumers import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    counts,
    offsets,
    opened,
    set_group,
    state,
    worker,
)
from waiting import PATIENCE, until

import segstore
from segstore import ConsumerRecord, ShareConsumer
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.shared import shared
from segstore.errors import (
    ClientClosedError,
    ConcurrentModificationError,
    ConfigError,
    CorruptRecordError,
    GroupNotFoundError,
    IllegalStateError,
    InvalidArgumentError,
    InvalidGroupIdError,
    InvalidRecordStateError,
    InvalidTypeError,
    ReadOnlyError,
    RecordDeserializationError,
    ReentrantCallError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
    WakeupError,
)


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    """Topic "t" has ten records in three batches."""
    with opened(store_dir) as store:
        yield store


# --- what a poll gives ---------------------------------------------------------------------------


def test_a_poll_gives_records_by_partition(store_dir: Path) -> None:
    with opened(store_dir, partitions=2) as store, worker(store) as queue:
        polled = queue.poll()
        assert {at: offsets(records) for at, records in polled.items()} == {
            tp(0): [*range(10)],
            tp(1): [*range(10)],
        }
        for records in polled.values():
            assert all(isinstance(record, ConsumerRecord) for record in records)
            assert {record.delivery_count for record in records} == {1}
        assert polled[tp(1)][3].value == b"1-3"


def test_records_of_other_consumers_have_no_delivery_count(store: segstore.Store) -> None:
    with segstore.Consumer(store, "t", auto_offset_reset="earliest") as consumer:
        (records,) = consumer.poll().values()
    assert {record.delivery_count for record in records} == {None}


def test_a_flat_poll_gives_the_same_in_a_list(store_dir: Path) -> None:
    with opened(store_dir, partitions=2) as store:
        with worker(store) as queue:
            polled = queue.poll()
        with worker(store, group="h") as queue:
            flat = queue.poll_flat()
        assert sorted(flat) == sorted(record for records in polled.values() for record in records)
        with worker(store, group="h") as queue:
            assert counts(queue.poll_flat()) == dict.fromkeys(range(10), 2)


def test_the_first_poll_of_a_group_has_records_at_once(store: segstore.Store) -> None:
    """D1: without another heartbeat, and without a wait."""
    with worker(store) as queue:
        assert len(queue.poll_flat(timeout_ms=0)) == 10


def test_two_consumers_have_no_record_in_common(store: segstore.Store) -> None:
    with worker(store, share_acquire_mode="record_limit", max_poll_records=4) as one, worker(store) as other:
        assert offsets(one.poll_flat()) == [0, 1, 2, 3]
        assert offsets(other.poll_flat(timeout_ms=LONG_MS)) == [*range(4, 10)]


MODES: dict[str, tuple[dict[str, Any], int | None, list[int]]] = {
    "whole batches": ({"max_poll_records": 6}, None, [8, 2]),
    "at most so many": ({"max_poll_records": 6, "share_acquire_mode": "record_limit"}, None, [6, 4]),
    "one by one": ({"max_poll_records": 1, "share_acquire_mode": "record_limit"}, None, [1] * 10),
    "a limit of the poll": ({}, 3, [3, 1, 3, 1, 2]),
    "a limit of the poll, by the record": ({"share_acquire_mode": "record_limit"}, 3, [3, 3, 3, 1]),
    "a limit above": ({"max_poll_records": 4}, 100, [4, 4, 2]),
}


@pytest.mark.parametrize(("settings", "most", "sizes"), MODES.values(), ids=MODES)
def test_q19_how_many_records_a_poll_gives(
    store: segstore.Store, settings: dict[str, Any], most: int | None, sizes: list[int]
) -> None:
    found: list[list[int]] = []
    with worker(store, **settings) as queue:
        while records := queue.poll_flat(max_records=most):
            found.append(offsets(records))
            for record in records:
                queue.acknowledge(record)
    assert [*map(len, found)] == sizes
    assert [offset for each in found for offset in each] == [*range(10)]


def test_partitions_take_turns(store_dir: Path) -> None:
    with opened(store_dir, partitions=3) as store, worker(store, max_poll_records=1) as queue:
        first = []
        for _ in range(3):
            (polled,) = queue.poll().items()
            first.append(polled[0].partition)
            for record in polled[1]:
                queue.acknowledge(record)
    assert sorted(first) == [0, 1, 2]


# --- Q1: modes -----------------------------------------------------------------------------------


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


# --- Q3: renewal ---------------------------------------------------------------------------------


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


# --- Q4: results ---------------------------------------------------------------------------------


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


# --- Q5, Q6: gaps and errors -----------------------------------------------------------------------


def test_q5_offsets_without_records_are_acknowledged_by_the_client(store_dir: Path) -> None:
    with opened(store_dir) as store:
        with segstore.Producer(store, transactional_id="x") as producer:
            producer.init_transactions()
            for _ in range(3):
                producer.begin_transaction()
                producer.send("t", b"in a transaction")
                producer.commit_transaction()
        with worker(store) as queue:
            records = queue.poll_flat()
            assert offsets(records) == [*range(10), 10, 12, 14]
            assert state(store)[1] == 16 - 3
            for record in records:
                queue.acknowledge(record)
            assert queue.commit_sync() == {tp(): None}
        assert state(store)[1] == 0


def test_q5_a_poll_goes_on_after_gaps_alone(store: segstore.Store) -> None:
    """One offset a fetch: those of markers have nothing for the application."""
    with segstore.Producer(store, transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"in a transaction")
        producer.commit_transaction()
    store.partition("t").append(b"last")
    found: list[int] = []
    with worker(store, max_poll_records=1, share_acquire_mode="record_limit") as queue:
        while records := queue.poll_flat():
            found += offsets(records)
            queue.acknowledge(records[0])
    assert found == [*range(11), 12]


class Refusing:
    """Deserializes all but some values; counts its ends."""

    def __init__(self, *values: bytes) -> None:
        self.values, self.ends = values, 0

    def deserialize(self, _topic: str, data: bytes) -> bytes:
        if data in self.values:
            raise ZeroDivisionError(data)
        return data

    def close(self) -> None:
        self.ends += 1


@pytest.mark.parametrize("mode", ["explicit", "implicit"])
@pytest.mark.parametrize("rejects", [True, False])
def test_q6_a_record_that_cannot_be_deserialized(store: segstore.Store, mode: Any, rejects: bool) -> None:
    settings: Any = {"share_acknowledgement_mode": mode}
    with worker(store, value_deserializer=Refusing(b"0-3"), **settings) as queue:

        def answer(records: list[ConsumerRecord]) -> None:
            if mode == "explicit":
                for record in records:
                    queue.acknowledge(record)

        records = queue.poll_flat()
        assert offsets(records) == [0, 1, 2]
        answer(records)
        with pytest.raises(RecordDeserializationError) as failed:
            queue.poll()
        assert (failed.value.topic, failed.value.partition, failed.value.offset) == ("t", 0, 3)
        if rejects:
            queue.acknowledge_offset("t", 0, 3, REJECT)
        records = queue.poll_flat()
        assert offsets(records) == [4, 5, 6, 7, 8, 9]
        answer(records)
        if rejects:
            assert queue.poll() == {}
        else:
            with pytest.raises(RecordDeserializationError):
                queue.poll()
    with worker(store) as queue:
        assert counts(queue.poll_flat()) == ({} if rejects else {3: 3})


def test_an_error_of_a_deserializer_keeps_nothing(store: segstore.Store) -> None:
    """Its frames and their records end with it, without the garbage collector."""

    def caught() -> tuple[Any, Any]:
        queue = worker(store, value_deserializer=Refusing(b"0-0"))
        try:
            queue.poll()
        except RecordDeserializationError as error:
            return weakref.ref(error), weakref.ref(queue)
        return None, None

    gc.disable()
    try:
        error, queue = caught()
        assert (error(), queue()) == (None, None)
    finally:
        gc.enable()


def flip(store: segstore.Store, batch: int) -> None:
    """Change a byte in a batch of four records: the last of its value."""
    path = Path(store.path) / "t-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    at = 0
    for _ in range(batch + 1):
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    data[at - 2] ^= 0x55
    path.write_bytes(data)


DAMAGED: dict[str, tuple[list[int], list[list[int] | str]]] = {
    "the first": ([0], ["0", [4, 5, 6, 7, 8, 9]]),
    "the second": ([1], [[0, 1, 2, 3], "4", [8, 9]]),
    "two in a row": ([0, 1], ["0", [8, 9]]),
    "two apart": ([0, 2], ["0", [4, 5, 6, 7], "8"]),
    "all": ([0, 1, 2], ["0"]),
}


@pytest.mark.parametrize(("batches", "expected"), DAMAGED.values(), ids=DAMAGED)
def test_q6_damaged_batches_are_rejected(tmp_path: Path, batches: list[int], expected: list[Any]) -> None:
    found: list[Any] = []
    with opened(tmp_path / "store") as store:
        for each in batches:
            flip(store, each)
        with worker(store, share_acknowledgement_mode="implicit") as queue:
            while not found or found[-1] != []:
                try:
                    found.append(offsets(queue.poll_flat()))
                except CorruptRecordError as error:
                    found.append(str(error.offset))
        assert found == [*expected, []]
        assert state(store)[1] == 0


def test_q6_records_of_a_damaged_batch_become_dead_letters(tmp_path: Path) -> None:
    """They are rejected, and no gaps; what can't be copied is named."""
    with opened(tmp_path / "store") as store:
        store.create_topic("dlq.t", config={"errors.deadletterqueue.group.enable": True})
        set_group(store, **{"errors.deadletterqueue.topic.name": "dlq.t"})
        flip(store, 1)
        with worker(store, share_acknowledgement_mode="implicit") as queue:
            assert offsets(queue.poll_flat()) == [0, 1, 2, 3]
            with pytest.raises(CorruptRecordError):
                queue.poll()
        until(lambda: store.partition("dlq.t").end_offset == 4)
        letters = [dict(record.headers)["__dlq.errors.offset"] for record in store.partition("dlq.t")]
        assert letters == [b"4", b"5", b"6", b"7"]


def test_without_crcs_a_damaged_batch_is_read(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        flip(store, 1)
        with worker(store, check_crcs=False) as queue:
            assert offsets(queue.poll_flat()) == [*range(10)]


# --- Q7: close -------------------------------------------------------------------------------------


def members(store: segstore.Store, group: str = "g") -> int:
    info = shared(store, GroupCoordinator).describe_share(group)
    return 0 if info is None else len(info.members)


def test_q7_a_close_sends_gives_back_and_leaves(store: segstore.Store) -> None:
    with worker(store) as other:
        with worker(store, max_poll_records=1) as queue:
            for record in queue.poll_flat()[:2]:
                queue.acknowledge(record)
            assert offsets(other.poll_flat(timeout_ms=LONG_MS)) == [*range(4, 10)]
            assert members(store) == 2
        assert members(store) == 1
        assert state(store)[1] == 8
    with worker(store) as queue:
        assert counts(queue.poll_flat()) == dict.fromkeys(range(2, 10), 2)


def test_q7_a_close_gives_back_what_no_poll_has_given(store: segstore.Store) -> None:
    with worker(store, share_acknowledgement_mode="implicit") as queue:
        assert offsets(queue.poll_flat(max_records=2)) == [0, 1]
    with worker(store) as queue:
        assert counts(queue.poll_flat()) == {2: 2, 3: 2, **dict.fromkeys(range(4, 10), 1)}


def test_an_exception_accepts_nothing(store: segstore.Store) -> None:
    def work() -> None:
        with worker(store, share_acknowledgement_mode="implicit") as queue:
            queue.poll_flat()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    with worker(store) as queue:
        assert counts(queue.poll_flat()) == dict.fromkeys(range(10), 2)


def test_a_closed_consumer_is_refused(store: segstore.Store) -> None:
    part = Refusing()
    queue = worker(store, value_deserializer=part)
    (record, *_) = queue.poll_flat()
    queue.close()
    queue.close()
    assert part.ends == 1
    calls: list[Callable[[], object]] = [
        queue.poll,
        queue.poll_flat,
        queue.commit_sync,
        queue.commit_async,
        queue.subscription,
        queue.unsubscribe,
        queue.metrics,
        lambda: queue.subscribe(["t"]),
        lambda: queue.acknowledge(record),
        lambda: queue.acknowledge_offset("t", 0, 0),
        lambda: queue.set_acknowledgement_commit_callback(None),
    ]
    for call in calls:
        with pytest.raises(ClientClosedError):
            call()
    queue.wakeup()


@pytest.mark.parametrize("mode", ["explicit", "implicit"])
def test_a_close_of_the_store_ends_it(store_dir: Path, mode: Any) -> None:
    with opened(store_dir) as store:
        queue = worker(store, share_acknowledgement_mode=mode)
        records = queue.poll_flat()
        if mode == "explicit":
            queue.acknowledge(records[0])
    with pytest.raises(StoreClosedError):
        queue.poll()
    queue.close()
    with opened(store_dir) as store:
        assert members(store) == 0
        assert state(store)[1] == (9 if mode == "explicit" else 0)


def test_a_close_of_the_store_ends_a_poll_in_another_thread(store_dir: Path) -> None:
    with ThreadPoolExecutor(1) as thread:
        with opened(store_dir, records=0) as store:
            queue = worker(store)
            waiting = thread.submit(queue.poll, LONG_MS)
            until(lambda: queue._wait._may_wait)
        assert waiting.result(PATIENCE) == {}
    with pytest.raises(StoreClosedError):
        queue.poll()


def test_a_consumer_that_was_dropped_leaves_its_group(store: segstore.Store) -> None:
    queue: ShareConsumer | None = worker(store)
    assert queue is not None
    queue.poll()
    ref = weakref.ref(queue)
    queue = None
    assert ref() is None  # without the garbage collector
    with worker(store) as other:
        until(lambda: other.poll(timeout_ms=1) == {} and members(store) == 1)


@pytest.mark.kind("programs")
def test_a_child_of_a_fork_has_no_consumer(store: segstore.Store) -> None:
    queue = worker(store)
    records = queue.poll_flat()
    child = os.fork()
    if not child:
        status = 1
        try:
            queue.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for record in records:
        queue.acknowledge(record)
    assert queue.commit_sync() == {tp(): None}
    queue.close()
    assert members(store) == 0


# --- Q9: threads and signals ------------------------------------------------------------------------


def test_q9_a_second_thread_is_refused(store_dir: Path) -> None:
    with (
        opened(store_dir, records=0) as store,
        worker(store) as queue,
        ThreadPoolExecutor(1) as thread,
    ):
        waiting = thread.submit(queue.poll_flat, LONG_MS)
        until(lambda: queue._wait._may_wait)
        for call in (queue.poll, queue.commit_sync, queue.close, queue.subscription):
            with pytest.raises(ConcurrentModificationError):
                call()
        append(store, 1)
        assert offsets(waiting.result(PATIENCE)) == [0]


@pytest.fixture
def on_signal() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Sets what the handler of SIGUSR1 calls."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda call: signal.signal(signal.SIGUSR1, lambda *_: call())
    signal.signal(signal.SIGUSR1, before)


def poll_with_a_signal(queue: ShareConsumer) -> Any:
    """A poll within whose wait the signal comes."""

    def ring() -> None:
        until(lambda: queue._wait._may_wait)
        os.kill(os.getpid(), signal.SIGUSR1)

    ringing = threading.Thread(target=ring)
    ringing.start()
    try:
        return queue.poll(timeout_ms=LONG_MS)
    finally:
        ringing.join()


def test_a_handler_wakes_a_poll(store_dir: Path, on_signal: Callable[..., None]) -> None:
    with opened(store_dir, records=0) as store, worker(store) as queue:
        on_signal(queue.wakeup)
        with pytest.raises(WakeupError):
            poll_with_a_signal(queue)


def test_a_handler_within_a_wait_may_close(store_dir: Path, on_signal: Callable[..., None]) -> None:
    with opened(store_dir, records=0) as store, worker(store) as queue:
        on_signal(queue.close)
        assert poll_with_a_signal(queue) == {}
        with pytest.raises(ClientClosedError):
            queue.poll()


def test_a_handler_elsewhere_in_a_call_is_refused(
    store: segstore.Store, on_signal: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    with worker(store) as queue:

        def commit() -> None:
            try:
                queue.commit_sync()
            except ReentrantCallError as error:
                refused.append(str(error))

        on_signal(commit)
        beat = queue._membership.poll

        def interrupted() -> None:
            os.kill(os.getpid(), signal.SIGUSR1)
            beat()

        monkeypatch.setattr(queue._membership, "poll", interrupted)
        assert len(queue.poll_flat()) == 10
    (text,) = refused
    assert "a consumer's method was refused" in text
    assert "ShareConsumer.poll_flat()" in text


def test_a_wakeup_before_a_poll_ends_the_next_one(store: segstore.Store) -> None:
    with worker(store) as queue:
        queue.wakeup()
        with pytest.raises(WakeupError):
            queue.poll(timeout_ms=LONG_MS)
        assert len(queue.poll_flat()) == 10


# --- Q10, 1.3: what is refused ----------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no group": ({}, InvalidGroupIdError, "group_id=''"),
    "a blank group": ({"group_id": " "}, ConfigError, "group_id=' '"),
    "a setting of the group": (
        {"group_id": "g", "auto_offset_reset": "earliest"},
        ConfigError,
        "auto_offset_reset is refused.*share.auto.offset.reset",
    ),
    "an unknown setting": ({"group_id": "g", "colour": 1}, ConfigError, "colour"),
}


@pytest.mark.parametrize(("settings", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_q10_settings_are_refused_by_name(
    store: segstore.Store, settings: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        ShareConsumer(store, "t", **settings)


def test_a_topic_must_be_there(store: segstore.Store) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="'u'"):
        worker(store, "u")
    with worker(store) as queue:
        with pytest.raises(UnknownTopicOrPartitionError, match="'u'"):
            queue.subscribe(["t", "u"])
        assert queue.subscription() == {"t"}


@pytest.mark.parametrize("topics", ["t", 7, [7], None])
def test_topics_are_a_list_of_names(store: segstore.Store, topics: Any) -> None:
    with worker(store) as queue, pytest.raises(InvalidTypeError):
        queue.subscribe(topics)


def test_a_store_to_read_has_no_share_groups(store_dir: Path) -> None:
    with opened(store_dir), segstore.open(store_dir, mode="r") as reader:
        with pytest.raises(ReadOnlyError, match="share groups belong to the process that writes") as refused:
            worker(reader)
        assert "segstore serve" in str(refused.value)


def refusal(store: segstore.Store) -> str:
    try:
        worker(store)
    except ReadOnlyError as error:
        return str(error)
    return ""


def test_a_reader_is_told_where_the_store_is_served(store_dir: Path) -> None:
    """The server's thread says where, in a moment."""
    with (
        opened(store_dir) as store,
        segstore.serve(store, port=0) as server,
        segstore.open(store_dir, mode="r") as reader,
    ):
        until(lambda: re.search(f"with a Kafka client at .*:{server.port}, where", refusal(reader)))


def test_a_guest_is_refused_by_name(store_dir: Path) -> None:
    with opened(store_dir):
        pass
    with (
        segstore.open(store_dir, shared=True),
        segstore.open(store_dir, shared="guest") as guest,
        pytest.raises(IllegalStateError, match=r"ShareConsumer\(group_id='g'\).*guest"),
    ):
        worker(guest)


def test_no_store_is_refused() -> None:
    with pytest.raises(InvalidTypeError, match="store must be a Store"):
        ShareConsumer("store", group_id="g")  # type: ignore[arg-type]


ARGUMENTS: dict[str, tuple[Callable[[ShareConsumer], object], type[Exception]]] = {
    "a negative time-out": (lambda queue: queue.poll(timeout_ms=-1), InvalidArgumentError),
    "a time-out of no number": (lambda queue: queue.poll(timeout_ms="1"), InvalidTypeError),  # type: ignore[arg-type]
    "NaN": (lambda queue: queue.poll(timeout_ms=float("nan")), InvalidArgumentError),
    "no records": (lambda queue: queue.poll(max_records=0), InvalidArgumentError),
    "a commit's time-out": (lambda queue: queue.commit_sync(-1), InvalidArgumentError),
    "a close's time-out": (lambda queue: queue.close(-1), InvalidArgumentError),
    "a callback": (
        lambda queue: queue.set_acknowledgement_commit_callback("f"),  # type: ignore[arg-type]
        InvalidTypeError,
    ),
    "a topic": (lambda queue: queue.acknowledge_offset(7, 0, 0), InvalidTypeError),  # type: ignore[arg-type]
    "a partition": (lambda queue: queue.acknowledge_offset("t", -1, 0), InvalidArgumentError),
    "an offset": (lambda queue: queue.acknowledge_offset("t", 0, "0"), InvalidTypeError),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("call", "error"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_are_judged(
    store: segstore.Store, call: Callable[[ShareConsumer], object], error: type[Exception]
) -> None:
    with worker(store) as queue:
        with pytest.raises(error):
            call(queue)
        assert len(queue.poll_flat()) == 10


def test_a_group_of_another_kind_is_refused(store: segstore.Store) -> None:
    with segstore.Consumer(store, "t", group_id="h") as consumer:
        consumer.poll()
        with worker(store, group="h") as queue, pytest.raises(GroupNotFoundError):
            queue.poll()


# --- subscriptions -----------------------------------------------------------------------------------


def test_a_poll_needs_topics(store: segstore.Store) -> None:
    with ShareConsumer(store, group_id="g") as queue:
        assert queue.subscription() == set()
        with pytest.raises(IllegalStateError, match="subscribe"):
            queue.poll(timeout_ms=LONG_MS)


@pytest.mark.parametrize("way", ["unsubscribe", "nothing to subscribe to"])
def test_unsubscribing_leaves_the_group(store: segstore.Store, way: str) -> None:
    with worker(store) as queue:
        records = queue.poll_flat(max_records=2)
        if way == "unsubscribe":
            queue.unsubscribe()
        else:
            queue.subscribe([])
        assert members(store) == 0
        queue.acknowledge(records[0])
        assert queue.commit_sync() == {tp(): None}
        with worker(store) as other:
            assert counts(other.poll_flat()) == {2: 2, 3: 2, **dict.fromkeys(range(4, 10), 1)}
        with pytest.raises(IllegalStateError, match="subscribe"):
            queue.poll()
        queue.subscribe({"t"})
        queue.acknowledge(records[1])
        assert offsets(queue.poll_flat()) == [*range(2, 10)]


def test_another_subscription_takes_the_place_of_the_first(store: segstore.Store) -> None:
    store.create_topic("u")
    store.partition("u").append(b"x")
    with worker(store, share_acknowledgement_mode="implicit") as queue:
        assert queue.poll().keys() == {tp()}
        queue.subscribe(["u"])
        assert queue.subscription() == {"u"}
        assert queue.poll(timeout_ms=LONG_MS).keys() == {tp(0, "u")}


def test_q46_a_topic_that_is_made_anew_begins_anew(store: segstore.Store) -> None:
    with worker(store, share_acknowledgement_mode="implicit") as queue:
        assert len(queue.poll_flat()) == 10
        store.delete_topic("t")
        assert queue.poll() == {}
        store.create_topic("t")
        append(store, 3)
        assert counts(queue.poll_flat(timeout_ms=LONG_MS)) == {0: 1, 1: 1, 2: 1}


def test_q47_partitions_that_are_added_are_read(store: segstore.Store) -> None:
    with worker(store, share_acknowledgement_mode="implicit") as queue:
        assert len(queue.poll_flat()) == 10
        segstore.AdminClient(store).create_partitions({"t": segstore.NewPartitions(2)})
        append(store, 3, partition=1)
        assert {at: offsets(each) for at, each in queue.poll(timeout_ms=LONG_MS).items()} == {
            tp(1): [0, 1, 2]
        }


def test_a_member_that_polls_too_late_joins_again(store: segstore.Store) -> None:
    with worker(store, max_poll_interval_ms=1, share_acknowledgement_mode="implicit") as queue:
        queue.poll()
        until(lambda: members(store) == 0)
        assert queue.poll() == {}
        assert members(store) == 1
        assert state(store)[1] == 0


# --- the rest ----------------------------------------------------------------------------------------


def test_the_lock_s_time_is_known_after_the_first_fetch(store: segstore.Store) -> None:
    set_group(store, **{"share.record.lock.duration.ms": 20_000})
    with worker(store) as queue:
        assert queue.acquisition_lock_timeout_ms is None
        queue.poll()
        assert queue.acquisition_lock_timeout_ms == 20_000


def test_metrics_have_kafka_s_names(store: segstore.Store) -> None:
    with worker(store) as queue:
        for record in queue.poll_flat():
            queue.acknowledge(record)
        queue.commit_sync()
        queue.poll()
        found = queue.metrics()
    assert found.keys() == {
        "consumer-share-metrics",
        "consumer-share-coordinator-metrics",
        "consumer-share-fetch-manager-metrics",
    }
    fetching = found["consumer-share-fetch-manager-metrics"]
    assert fetching["records-consumed-total"] == fetching["acknowledgements-send-total"] == 10
    assert (fetching["records-per-request-max"], fetching["acknowledgements-error-total"]) == (10, 0)
    assert found["consumer-share-coordinator-metrics"]["rebalance-total"] == 1
    assert found["consumer-share-metrics"]["last-poll-seconds-ago"] == 0


def test_nothing_is_measured_if_nobody_wants_it(store: segstore.Store) -> None:
    with worker(store, metrics_enabled=False) as queue:
        queue.poll()
        assert queue.metrics() == {}


def test_names(store: segstore.Store) -> None:
    with worker(store, client_id="me") as queue:
        assert repr(queue).startswith("<ShareConsumer me of group 'g' of <Store")
        assert queue.config.client_id == "me"


def test_fifty_consumers_of_one_partition_have_each_record_once(store_dir: Path) -> None:
    with opened(store_dir, records=400) as store, ThreadPoolExecutor(10) as threads:

        def work(_: int) -> list[int]:
            found = []
            with worker(store, max_poll_records=4) as queue:
                while records := queue.poll_flat(timeout_ms=100):
                    for record in records:
                        found.append(record.offset)
                        queue.acknowledge(record)
                    assert set(queue.commit_sync().values()) == {None}
            return found

        done = [offset for each in threads.map(work, range(50)) for offset in each]
        assert sorted(done) == [*range(400)]
        assert state(store) == (400, 0) or state(store)[1] == 0
