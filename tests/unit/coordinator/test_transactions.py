"""The transaction coordinator: what it writes to `__transaction_state`, whom it fences, which transactions it
ends.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from faults import FailingFiles
from stores import Clock
from waiting import PATIENCE, until

import segstore
from segstore import Producer, TopicPartition, errors
from segstore.coordinator.java_hash import partition_of
from segstore.coordinator.shared import shared
from segstore.coordinator.transaction.coordinator import TransactionCoordinator
from segstore.coordinator.transaction.metadata import MAX_EPOCH, TransactionMetadata, TransactionState
from segstore.coordinator.transaction.state_log import TOPIC
from segstore.records import TRANSACTIONAL_FLAG, Template
from segstore.storage.log import transaction_markers
from segstore.storage.log.append import append_record

CONFIG = {"transaction.state.log.num.partitions": 3, "offsets.topic.num.partitions": 2}
T0 = TopicPartition("t", 0)
U1 = TopicPartition("u", 1)

# --- the coordinator ------------------------------------------------------------------------------


@contextmanager
def coordinated(path: Path, **options: Any) -> Iterator[tuple[segstore.Store, TransactionCoordinator]]:
    with segstore.open(path, config={**CONFIG, **options.pop("config", {})}, **options) as store:
        for topic in ("t", "u"):
            if topic not in store.topics():
                store.create_topic(topic, partitions=2)
        yield store, shared(store, TransactionCoordinator)


def open_in(store: segstore.Store, at: TopicPartition) -> list[int]:
    return [each.producer_id for each in transaction_markers.open_transactions(store.partition(*at))]


def test_a_new_id_and_then_its_next_epochs(store_dir: Path) -> None:
    with coordinated(store_dir) as (store, coordinator):
        assert coordinator.init_producer_id("x", 60_000) == (0, 0)
        assert coordinator.init_producer_id("x", 60_000) == (0, 1)
        assert coordinator.init_producer_id("y", 60_000) == (1, 0)
        info = store.topics()[TOPIC]
        assert (info.partitions, info.internal) == (3, True)
        assert info.config == {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": 100 << 20,
            "unclean.leader.election.enable": False,
        }
        assert store.partition(TOPIC, partition_of("x", 3)).end_offset >= 2
    with coordinated(store_dir) as (_, coordinator):
        assert coordinator.init_producer_id("x", 60_000) == (0, 2)
        assert coordinator.init_producer_id("z", 60_000) == (1000, 0)


@pytest.mark.parametrize(
    ("setting", "partitions"), [({}, 1), ({"transaction.state.log.num.partitions": 50}, 50)]
)
def test_the_number_of_partitions_is_that_of_the_first_transaction(
    store_dir: Path, setting: dict[str, int], partitions: int
) -> None:
    """A store that was made with another number, as 50 by earlier versions, keeps it."""
    with segstore.open(store_dir, config=setting) as store:
        assert shared(store, TransactionCoordinator).init_producer_id("x", 900_000) == (0, 0)
    for epoch, other in ((1, {}), (2, {"transaction.state.log.num.partitions": 7})):
        with segstore.open(store_dir, config=other) as store:
            assert shared(store, TransactionCoordinator).init_producer_id("x", 900_000) == (0, epoch)
            assert store.topics()[TOPIC].partitions == partitions


def test_a_timeout_above_the_stores_is_refused(store_dir: Path) -> None:
    limit = r"transaction.max.timeout.ms=900000"
    with segstore.open(store_dir) as store, pytest.raises(errors.InvalidTxnTimeoutError, match=limit):
        shared(store, TransactionCoordinator).init_producer_id("x", 900_001)


def test_a_transaction_goes_through_its_states(store_dir: Path) -> None:
    clock = Clock()
    with coordinated(store_dir, clock=clock) as (_, coordinator):
        me = coordinator.init_producer_id("x", 60_000)
        seen = []

        def look() -> TransactionMetadata:
            seen.append(coordinator.transactions()["x"].state)
            return coordinator.transactions()["x"]

        look()
        coordinator.add_partitions("x", me, [T0])
        began = look()
        clock.now += 10
        coordinator.add_partitions("x", me, [T0, U1])
        assert look().partitions == {T0, U1}
        assert began.started_ms == look().started_ms == clock.now - 10
        after = coordinator.end("x", me, commit=True)
        assert after == (me[0], me[1] + 1)
        assert look().partitions == frozenset()
        coordinator.add_partitions("x", after, [T0])
        assert coordinator.end("x", after, commit=False) == (me[0], me[1] + 2)
        look()
        ongoing, done = TransactionState.ONGOING, TransactionState.COMPLETE_COMMIT
        assert seen == [
            TransactionState.EMPTY,
            ongoing,
            ongoing,
            ongoing,
            done,
            TransactionState.COMPLETE_ABORT,
        ]


def test_an_end_without_records(store_dir: Path) -> None:
    with coordinated(store_dir) as (_, coordinator):
        me = coordinator.init_producer_id("x", 60_000)
        with pytest.raises(errors.InvalidTxnStateError, match="EMPTY"):
            coordinator.end("x", me, commit=True)
        for _ in range(2):  # the first answer may be lost
            assert coordinator.end("x", me, commit=False) == (me[0], me[1] + 1)
        with pytest.raises(errors.InvalidTxnStateError, match="COMPLETE_ABORT"):
            coordinator.end("x", (me[0], me[1] + 1), commit=True)


FENCED = {
    "add_partitions": lambda c, me: c.add_partitions("x", me, [T0]),
    "commit": lambda c, me: c.end("x", me, commit=True),
    "abort": lambda c, me: c.end("x", me, commit=False),
}


@pytest.mark.parametrize("ask", FENCED.values(), ids=FENCED)
@pytest.mark.parametrize("began", [True, False])
def test_who_is_taken_over_is_fenced(store_dir: Path, ask: Any, began: bool) -> None:
    with coordinated(store_dir) as (_, coordinator):
        old = coordinator.init_producer_id("x", 60_000)
        if began:
            coordinator.add_partitions("x", old, [T0])
        new = coordinator.init_producer_id("x", 60_000)
        assert new[1] == old[1] + 1 + began  # the one in between aborted what was open
        with pytest.raises(errors.ProducerFencedError, match=r"'x'.*epoch"):
            ask(coordinator, old)
        with pytest.raises(errors.TransactionalIdNotFoundError):
            coordinator.end("nobody", new, commit=True)
        coordinator.add_partitions("x", new, [T0])


@pytest.mark.parametrize("how", ["init", "abort", "commit"])
def test_epochs_run_out(store_dir: Path, how: str) -> None:
    with coordinated(store_dir) as (store, coordinator):
        me = coordinator.init_producer_id("x", 60_000)
        with coordinator._entries.locked("x") as entry:
            entry.metadata = entry.known._replace(producer_epoch=MAX_EPOCH)
        me = me[0], MAX_EPOCH
        if how != "init":
            coordinator.add_partitions("x", me, [T0])
            fresh = coordinator.end("x", me, commit=how == "commit")
            assert transaction_markers.producer_epoch(store.partition(*T0), me[0]) == MAX_EPOCH + 1
        else:
            fresh = coordinator.init_producer_id("x", 60_000)
        assert fresh == (me[0] + 1, 0)
        assert coordinator.transactions()["x"].previous_producer_id == me[0]
        coordinator.add_partitions("x", fresh, [T0])
    with coordinated(store_dir) as (_, coordinator):
        assert coordinator.init_producer_id("x", 60_000)[0] == fresh[0]


@pytest.mark.parametrize("restarts", [False, True], ids=["at once", "behind a restart"])
def test_a_timeout_in_the_last_epoch(store_dir: Path, restarts: bool) -> None:
    """The abort uses up the epochs: its producer goes on under another id."""
    clock, me = Clock(), (0, MAX_EPOCH)
    with coordinated(store_dir, clock=clock) as (_, coordinator):
        assert coordinator.init_producer_id("x", 1000, remote=True) == (0, 0)
        with coordinator._entries.locked("x") as entry:
            entry.metadata = entry.known._replace(producer_epoch=MAX_EPOCH)
        coordinator.add_partitions("x", me, [T0])
        clock.now += 1001
        coordinator.abort_timed_out()
        if not restarts:
            check_the_way_on(coordinator, me)
    if restarts:
        with coordinated(store_dir, clock=clock) as (_, coordinator):
            check_the_way_on(coordinator, me)


def check_the_way_on(coordinator: TransactionCoordinator, me: tuple[int, int]) -> None:
    state = coordinator.transactions()["x"]
    fresh = state.producer_id, 0
    assert (state.previous_producer_id, state.producer_epoch) == (me[0], 0)
    with pytest.raises(errors.InvalidTxnStateError):
        coordinator.end("x", me, commit=True)
    for _ in range(2):  # the first answer may be lost
        assert coordinator.end("x", me, commit=False) == fresh
    for commit in (True, False):
        with pytest.raises(errors.InvalidPidMappingError):
            coordinator.end_in_epoch("x", me, commit)
    for _ in range(2):
        assert coordinator.init_producer_id("x", 1000, me, remote=True) == fresh
    coordinator.add_partitions("x", fresh, [T0])
    assert coordinator.end("x", fresh, commit=True) == (fresh[0], 1)


def test_what_is_open_for_too_long_is_aborted(store_dir: Path) -> None:
    clock = Clock()
    with coordinated(store_dir, clock=clock) as (store, coordinator):
        with Producer(store, transactional_id="x", transaction_timeout_ms=1000) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"v", partition=0).get(PATIENCE)
            clock.now += 1000
            coordinator.abort_timed_out()
            assert coordinator.transactions()["x"].state is TransactionState.ONGOING
            clock.now += 1
            coordinator.abort_timed_out()
            assert coordinator.transactions()["x"].state is TransactionState.COMPLETE_ABORT
            assert open_in(store, T0) == []
            log = store.partition(*T0)
            assert log.last_stable_offset == log.end_offset == 2
            with pytest.raises(errors.InvalidProducerEpochError, match="transaction_timeout_ms=1000"):
                producer.send("t", b"late", partition=0).get(PATIENCE)
        assert log.end_offset == 2


def send_late(producer: Producer) -> None:
    producer.send("t", b"late", partition=0).get(PATIENCE)


LATE: dict[str, Any] = {
    "commit": (Producer.commit_transaction, errors.InvalidTxnStateError),
    "send": (send_late, errors.InvalidProducerEpochError),
    "abort": None,
}


@pytest.mark.parametrize("first", LATE)
def test_a_producer_goes_on_behind_a_timeout(store_dir: Path, first: str) -> None:
    """What it does first fails, if it is no abort; an abort is always possible, and the next transaction."""
    clock = Clock()
    with (
        coordinated(store_dir, clock=clock) as (store, coordinator),
        Producer(store, transactional_id="x", transaction_timeout_ms=1000) as producer,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"lost", partition=0).get(PATIENCE)
        clock.now += 1001
        coordinator.abort_timed_out()
        if LATE[first]:
            call, error = LATE[first]
            with pytest.raises(error):
                call(producer)
            with pytest.raises(errors.TransactionAbortedError):
                producer.commit_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send("t", b"kept", partition=0)
        producer.commit_transaction()
        found = store.partition(*T0).read(0, isolation_level="read_committed")
        assert [record.value for record in found] == [b"kept"]


def test_a_producer_that_was_taken_over_behind_a_timeout_is_fenced(store_dir: Path) -> None:
    clock = Clock()
    with (
        coordinated(store_dir, clock=clock) as (store, coordinator),
        Producer(store, transactional_id="x", transaction_timeout_ms=1000) as producer,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"lost", partition=0).get(PATIENCE)
        clock.now += 1001
        coordinator.abort_timed_out()
        coordinator.init_producer_id("x", 60_000)
        with pytest.raises(errors.ProducerFencedError):
            producer.abort_transaction()


def test_the_scheduler_looks_for_timeouts(store_dir: Path) -> None:
    config = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 1}
    clock = Clock()
    with coordinated(store_dir, clock=clock, config=config) as (_, coordinator):
        me = coordinator.init_producer_id("x", 1000)
        coordinator.add_partitions("x", me, [T0])
        clock.now += 5000
        until(lambda: coordinator.transactions()["x"].state is TransactionState.COMPLETE_ABORT)


def test_ids_that_nobody_uses_expire(store_dir: Path) -> None:
    clock = Clock()
    config = {"transactional.id.expiration.ms": 1000}
    with coordinated(store_dir, clock=clock, config=config) as (_, coordinator):
        old, busy = coordinator.init_producer_id("old", 500), coordinator.init_producer_id("busy", 500)
        coordinator.add_partitions("busy", busy, [T0])
        clock.now += 999
        coordinator.expire()
        assert set(coordinator.transactions()) == {"old", "busy"}
        clock.now += 1
        coordinator.expire()
        assert set(coordinator.transactions()) == {"busy"}
        with pytest.raises(errors.TransactionalIdNotFoundError, match=r"'old'.*expired"):
            coordinator.add_partitions("old", old, [T0])
    with coordinated(store_dir, clock=clock, config=config) as (_, coordinator):
        assert set(coordinator.transactions()) == {"busy"}
        assert coordinator.init_producer_id("old", 500) != old


def full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


# pwrite calls of an end: Prepare, a marker in each of two partitions (and its .txnindex), Complete.
CALLS = {True: 4, False: 6}


@pytest.mark.parametrize(
    ("commit", "nth"), [(c, n) for c, calls in CALLS.items() for n in range(1, calls + 1)]
)
@pytest.mark.parametrize("times", [1, 3])
def test_an_end_that_the_disk_refuses_is_not_lost(
    store_dir: Path, commit: bool, nth: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks again finds it done; what the scheduler does of itself comes too late to be seen here."""
    monkeypatch.setattr("segstore.coordinator.transaction.coordinator.FIRST_RETRY", 3600.0)
    files = FailingFiles({"pwrite"}, full(), 0)
    with coordinated(store_dir, files=files) as (store, coordinator):
        me = coordinator.init_producer_id("x", 60_000)
        with Producer(store, transactional_id="y") as other:
            other.init_transactions()
            coordinator.add_partitions("x", me, [T0, U1])
            _append(store, me)
            files.arm(nth, times)
            if nth == 1:
                with pytest.raises(errors.StorageError):
                    coordinator.end("x", me, commit)
                assert coordinator.transactions()["x"].state is TransactionState.ONGOING
            else:
                coordinator.end("x", me, commit)
                # Nobody sees half of it; the next transaction waits for the end of this one.
                assert len(open_in(store, T0)) == len(open_in(store, U1)) == (nth < CALLS[commit])

            def next_one() -> bool:
                with suppress(errors.StorageError, errors.ConcurrentTransactionsError):
                    coordinator.end("x", me, commit) if nth == 1 else None
                    coordinator.init_producer_id("x", 60_000)
                    return True
                return False

            until(next_one)
            assert files.hits == times
            assert open_in(store, T0) == open_in(store, U1) == []
            expected = [b"v"] if commit else []
            for at in (T0, U1):
                found = store.partition(*at).read(0, isolation_level="read_committed")
                assert [record.value for record in found] == expected


def _append(store: segstore.Store, me: tuple[int, int]) -> None:
    now, template = store.context.clock(), Template(TRANSACTIONAL_FLAG, *me, 0)
    for at in (T0, U1):
        append_record(store.partition(*at), b"v", None, (), now, None, template)


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_asked_for_again(store_dir: Path, commit: bool) -> None:
    """By who knows its epoch's successor, or not yet; while markers can't be written, and when they are."""
    files = FailingFiles({"pwrite"}, full(), 0)
    with coordinated(store_dir, files=files) as (store, coordinator):
        me = coordinator.init_producer_id("x", 60_000)
        coordinator.add_partitions("x", me, [T0, U1])
        _append(store, me)
        files.arm(2, 1000)
        after = coordinator.end("x", me, commit)
        assert after == (me[0], me[1] + 1)
        for known, outcome in ((me, commit), (after, commit), (me, not commit)):
            with pytest.raises(errors.ConcurrentTransactionsError):
                coordinator.end("x", known, outcome)
        assert coordinator.transactions()["x"].state.prepared
        files.arm(0)
        with pytest.raises(errors.InvalidTxnStateError):
            coordinator.end("x", me, not commit)
        assert coordinator.end("x", me, commit) == after
        assert coordinator.transactions()["x"].state.idle
        coordinator.add_partitions("x", after, [T0])
        with pytest.raises(errors.ProducerFencedError):
            coordinator.end("x", me, commit)


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_of_a_producer_that_keeps_its_epoch(store_dir: Path, commit: bool) -> None:
    """While markers can't be written, and when they are; the producer then goes on in its epoch (KIP-98)."""
    files = FailingFiles({"pwrite"}, full(), 0)
    with coordinated(store_dir, files=files) as (store, coordinator):
        me = coordinator.init_producer_id("x", 60_000)
        coordinator.add_partitions("x", me, [T0, U1])
        _append(store, me)
        files.arm(2, 1000)
        coordinator.end_in_epoch("x", me, commit)
        for outcome in (commit, not commit):
            with pytest.raises(errors.ConcurrentTransactionsError):
                coordinator.end_in_epoch("x", me, outcome)
        with (
            pytest.raises(errors.ConcurrentTransactionsError),
            coordinator.verifying("x", me),
        ):
            """Nothing may be appended: it would be part of the transaction before."""
        files.arm(0)
        coordinator.end_in_epoch("x", me, commit)
        with pytest.raises(errors.InvalidTxnStateError):
            coordinator.end_in_epoch("x", me, not commit)
        coordinator.add_partitions("x", me, [T0])
        assert open_in(store, T0) == open_in(store, U1) == []
        coordinator.end_in_epoch("x", me, not commit)
        found = store.partition(*T0).read(0, isolation_level="read_committed")
        assert [record.value for record in found] == ([b"v"] if commit else [])


@pytest.mark.parametrize("commit", [True, False])
def test_the_decision_of_such_an_end_outlives_the_process(store_dir: Path, commit: bool) -> None:
    files = FailingFiles({"pwrite"}, full(), 0)
    # Closing can't write its checkpoints either.
    with suppress(errors.StorageError), coordinated(store_dir, files=files) as (store, coordinator):
        me = coordinator.init_producer_id("x", 60_000)
        coordinator.add_partitions("x", me, [T0, U1])
        _append(store, me)
        files.arm(2, 1000)
        coordinator.end_in_epoch("x", me, commit)
    with coordinated(store_dir) as (store, coordinator):
        assert coordinator.transactions()["x"].state.commits == commit
        for at in (T0, U1):
            found = store.partition(*at).read(0, isolation_level="read_committed")
            assert [record.value for record in found] == ([b"v"] if commit else [])
        assert coordinator.init_producer_id("x", 60_000) == (me[0], me[1] + 1)


def test_an_end_is_retried_without_being_asked(store_dir: Path) -> None:
    files = FailingFiles({"pwrite"}, full(), 0)
    with coordinated(store_dir, files=files) as (store, coordinator):
        me = coordinator.init_producer_id("x", 60_000)
        coordinator.add_partitions("x", me, [T0, U1])
        _append(store, me)
        files.arm(2, 2)
        coordinator.end("x", me, commit=True)
        until(lambda: coordinator.transactions()["x"].state is TransactionState.COMPLETE_COMMIT)
        assert files.hits == 2


def test_a_topic_that_is_deleted_meanwhile_needs_no_end(store_dir: Path) -> None:
    with coordinated(store_dir) as (store, coordinator):
        me = coordinator.init_producer_id("x", 60_000)
        coordinator.add_partitions("x", me, [T0, U1])
        _append(store, me)
        store.delete_topic("u")
        coordinator.end("x", me, commit=True)
        assert coordinator.transactions()["x"].state is TransactionState.COMPLETE_COMMIT
        assert open_in(store, T0) == []


def test_nobody_ends_what_is_being_appended(store_dir: Path) -> None:
    with coordinated(store_dir) as (store, coordinator):
        me = coordinator.init_producer_id("x", 60_000)
        taking_over = threading.Thread(target=lambda: coordinator.init_producer_id("x", 60_000))
        with coordinator.appending("x", me, [T0, U1]):
            taking_over.start()
            taking_over.join(0.05)
            assert taking_over.is_alive()
            _append(store, me)
        taking_over.join(PATIENCE)
        assert open_in(store, T0) == open_in(store, U1) == []
        with pytest.raises(errors.ProducerFencedError), coordinator.appending("x", me, [T0]):
            raise AssertionError


def test_reading_opens_nothing(store_dir: Path) -> None:
    with coordinated(store_dir) as (_, coordinator):
        coordinator.init_producer_id("x", 60_000)
    with segstore.open(store_dir, mode="r") as store, pytest.raises(errors.ReadOnlyError):
        shared(store, TransactionCoordinator)
