"""The records that producers hold when their store is closed: they are written, or reported as unwritten."""

from __future__ import annotations

import gc
import logging
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from closing import store as store
from consumers import earliest, fill
from faults import FailingFiles
from stores import values
from waiting import PATIENCE, until

import segstore
from segstore import errors
from segstore.client.producer import Producer
from segstore.storage.store.clients import Turn

pytestmark = pytest.mark.kind("interrupts")

FULL = OSError(28, "No space left on device")


# --- what producers hold --------------------------------------------------------------------------


def test_what_a_producer_holds_is_written_when_the_block_ends(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        producer = Producer(store)
        futures = [producer.send("t", b"%d" % i) for i in range(10_000)]
    assert [future.get(0).offset for future in futures] == [*range(10_000)]
    with segstore.open(store_dir) as store:
        assert values(store.partition("t")) == [b"%d" % i for i in range(10_000)]


def test_producers_that_were_dropped_at_once_are_written(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        futures = [segstore.Producer(store).send("t", b"x", key=b"k") for _ in range(1001)]
    assert sorted(future.get(0).offset for future in futures) == [*range(1001)]
    with segstore.open(store_dir) as store:
        assert store.partition("t").end_offset == 1001


@pytest.mark.parametrize("linger_ms", [0, 60_000])
def test_a_producer_that_was_dropped_before_the_store_is_closed(store_dir: Path, linger_ms: int) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        producer = Producer(store, linger_ms=linger_ms)
        future = producer.send("t", b"x")
        del producer
    assert future.get(0).offset == 0


def test_a_store_keeps_no_client_that_is_dropped(store: segstore.Store) -> None:
    fill(store, "u")
    producer, consumer = Producer(store), earliest(store, "u", group_id="g")
    sender = producer._sender
    del producer, consumer
    sender.join(PATIENCE)
    del sender
    # The sender's thread has its last steps to make when `join` returns.
    until(lambda: gc.collect() >= 0 and not store._clients._attached)


def test_all_that_lingers_is_sent_at_once_although_one_producer_is_stuck(store_dir: Path) -> None:
    """The one that is stuck must not take the time of the others."""
    files = FailingFiles({"pwrite"}, lambda name, args: refuse_stuck(args), 0, 1 << 30)

    def refuse_stuck(args: tuple[Any, ...]) -> None:
        if "stuck-0" in args[0].path:
            raise FULL

    store = segstore.open(store_dir, files=files)
    for topic in ("stuck", "t"):
        store.create_topic(topic)
    files.arm(1, 1 << 30)
    stuck, lingers = Producer(store, linger_ms=60_000), Producer(store, linger_ms=60_000)
    stuck.send("stuck", b"x")
    future = lingers.send("t", b"y")
    with pytest.raises(errors.UnwrittenRecordsError) as caught:
        store.close(timeout=0.5)
    assert caught.value.partitions == {("stuck", 0): 1}
    assert future.get(0).offset == 0


def test_what_fails_while_another_producer_is_waited_for_is_counted(store: segstore.Store) -> None:
    store.create_topic("gone")
    first, second = Producer(store, linger_ms=60_000), Producer(store, linger_ms=60_000)
    future, gone = first.send("t", b"x"), second.send("gone", b"y")
    store.delete_topic("gone")
    # The first is waited for until the second has failed.
    future.add_callback(lambda _: until(lambda: gone.is_done))
    with pytest.raises(errors.UnwrittenRecordsError) as caught:
        store.close()
    assert caught.value.partitions == {("gone", 0): 1}
    assert future.get(0).offset == 0


# --- what can't be written is told ----------------------------------------------------------------


def unwritable(store_dir: Path) -> tuple[segstore.Store, list[Any]]:
    """A store over a full disk, and futures of two records for t-0 and one for u-1."""
    files = FailingFiles({"pwrite"}, FULL, 0, 1 << 30)
    store = segstore.open(store_dir, files=files)
    store.create_topic("t")
    store.create_topic("u", partitions=2)
    producer = Producer(store, linger_ms=0, retry_backoff_ms=1)
    files.arm(1, 1 << 30)
    sent = [producer.send(*record) for record in (("t", b"1"), ("t", b"2"), ("u", b"3", None, None, 1))]
    # Each was refused twice: what is told of the first time is told.
    until(lambda: [batch.attempts > 1 for batch in _records(producer)] == [True] * 3)
    return store, sent


def _records(producer: Producer) -> list[Any]:
    """The batch of each record that has no outcome yet."""
    return [batch for batch in list(producer._accumulator.incomplete.batches) for _ in range(batch.n)]


def judge_told(store_dir: Path, sent: list[Any], caplog: pytest.LogCaptureFixture, lost: int = 3) -> None:
    for future in sent:
        with pytest.raises(errors.StoreClosedError, match="before the record was written"):
            future.get(0)
    told = [record for record in caplog.records if f"before {lost} records were written" in record.message]
    assert [record.levelno for record in told] == [logging.WARNING]
    with segstore.open(store_dir) as store:  # its lock was let go
        assert [values(store.partition(*at)) for at in (("t", 0), ("u", 1))] == [[], []]


@pytest.mark.parametrize("how", ["close", "with"])
@pytest.mark.parametrize("timeout", [0, 0.05])
def test_what_is_not_written_is_raised(
    store_dir: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    timeout: float,
) -> None:
    store, sent = unwritable(store_dir)
    monkeypatch.setattr("segstore.storage.store.store.CLOSE_TIMEOUT", timeout)
    leave = partial(store.__exit__, None, None, None) if how == "with" else partial(store.close, timeout)
    with pytest.raises(errors.UnwrittenRecordsError) as caught:
        leave()
    error = caught.value
    assert (error.records, error.partitions) == (3, {("t", 0): 2, ("u", 1): 1})
    assert isinstance(error.__cause__, errors.StorageError)
    assert error.__cause__.errno == 28
    for said in ("3 records", "2 for t-0", "1 for u-1", "No space left on device", str(store_dir)):
        assert said in str(error)
    judge_told(store_dir, sent, caplog)
    store.close()  # is harmless
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.partitions) == (str(error), error.partitions)


@pytest.mark.parametrize("kind", [ZeroDivisionError, KeyboardInterrupt])
def test_an_exception_that_leaves_the_block_is_not_replaced(
    store_dir: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[BaseException],
) -> None:
    store, sent = unwritable(store_dir)
    monkeypatch.setattr("segstore.storage.store.store.CLOSE_TIMEOUT", 0.05)
    with pytest.raises(kind, match="mine"), store:
        raise kind("mine")
    judge_told(store_dir, sent, caplog)


def test_ctrl_c_while_the_store_waits_is_raised_and_the_number_is_logged(
    store_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, sent = unwritable(store_dir)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("segstore.client.producer.incomplete_batches.Incomplete.wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.close()
    judge_told(store_dir, sent, caplog)


def test_a_producer_that_gives_up_says_how_many(store_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, _ = unwritable(store_dir)
    (ending,) = store._clients._live(Turn.WRITER)
    ending.close(0.01)
    assert "closed before 3 records were written" in caplog.text
    with pytest.raises(errors.StorageError):  # the disk is full
        store.close(0)


@pytest.mark.parametrize(
    ("timeout", "error"),
    [
        (-1, errors.InvalidArgumentError),
        (float("nan"), errors.InvalidArgumentError),
        ("1", errors.InvalidTypeError),
        (True, errors.InvalidTypeError),
    ],
)
def test_a_timeout_that_is_none_is_refused(
    store: segstore.Store, timeout: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="timeout"):
        store.close(timeout)
    store.partition("t").append(b"it is open still")


@pytest.mark.parametrize("timeout", [0, 1, 0.5, float("inf"), None])
def test_timeouts(store_dir: Path, timeout: float | None) -> None:
    store = segstore.open(store_dir)
    store.close(timeout=timeout)
    store.close(timeout=timeout)
