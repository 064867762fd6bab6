"""Ctrl-C, or another thread, in the middle of what a producer does: no record is lost or left behind."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from interrupts import interrupted
from stores import all_committed
from waiting import PATIENCE

import segstore
from segstore import Producer
from segstore.client.producer import FutureRecordMetadata, accumulator, batch, buffer_pool, incomplete_batches
from segstore.client.producer.accumulator import Accumulator
from segstore.client.producer.batch import PartitionQueue, ProducerBatch
from segstore.client.producer.buffer_pool import BufferPool
from segstore.coordinator.shared import shared
from segstore.coordinator.transaction.coordinator import TransactionCoordinator
from segstore.coordinator.transaction.state_log import Entries
from segstore.storage.log.visibility import Visible

pytestmark = pytest.mark.kind("interrupts")

CLOSING = (accumulator, buffer_pool, incomplete_batches)


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, config={"transaction.state.log.num.partitions": 1}) as store:
        store.create_topic("a")
        store.create_topic("b")
        yield store


def ends_a_transaction() -> bool:
    """Whether the coordinator's `end` calls, which the main thread waits for."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not TransactionCoordinator._end.__code__:
        frame = frame.f_back
    return frame is not None


def once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool) -> None:
    """Let the main thread be interrupted in its next call of `owner.name`, before or after it did its work;
    where it only waits for that, the work goes on.
    """
    real: Callable[..., Any] = getattr(owner, name)

    def raise_it(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGUSR1, before)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, raise_it)
    main = threading.main_thread()

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        thread = threading.current_thread()
        if thread is not main and ends_a_transaction():
            monkeypatch.setattr(owner, name, real)
            done = real(*args, **kwargs) if after else None
            signal.pthread_kill(main.ident or 0, signal.SIGUSR1)
            return done if after else real(*args, **kwargs)
        if thread is not main:
            return real(*args, **kwargs)
        monkeypatch.setattr(owner, name, real)
        if after:
            real(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, interrupted)


def test_a_record_that_comes_while_its_batch_is_sealed_is_sent(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[FutureRecordMetadata] = []
    threads: list[threading.Thread] = []

    def made(*args: Any) -> ProducerBatch:
        if not threads:
            threads.append(threading.Thread(target=lambda: late.append(producer.send("a", b"late"))))
            threads[0].start()
            threads[0].join(0.1)  # it may have to wait for the lock that is held here
        return ProducerBatch(*args)

    monkeypatch.setattr(batch, "ProducerBatch", made)
    with Producer(store) as producer:
        producer.send("a", b"first").get(PATIENCE)
        threads[0].join(PATIENCE)
        assert late[0].get(PATIENCE).offset == 1  # nobody flushed


@pytest.mark.parametrize("linger_ms", [0, 60_000])
def test_a_close_that_is_interrupted_anywhere_leaves_no_record_without_an_outcome(
    store: segstore.Store, linger_ms: int
) -> None:
    for nth in count(1):
        producer = Producer(store, linger_ms=linger_ms)
        futures = [producer.send(topic, b"x") for topic in ("a", "b") for _ in range(2)]
        pool = producer._accumulator.pool
        told: list[object] = []
        for future in futures:
            future.add_both(told.append)
        hit = interrupted(nth, CLOSING, partial(producer.close, timeout=0))
        assert not producer._accumulator.incomplete.in_callback(), nth
        again = threading.Thread(target=producer.close, daemon=True)
        again.start()
        again.join(PATIENCE)
        assert not again.is_alive(), nth
        assert all(future.is_done for future in futures), nth
        assert (pool.available, producer._accumulator.idle()) == (pool.total, True), nth
        if not hit:
            assert len(told) == len(futures)
            break


SEAMS = {
    "a batch is made": (batch, "ProducerBatch", False),
    "its records are placed": (PartitionQueue, "settle", False),
    "they were placed": (PartitionQueue, "settle", True),
    "the decision is to be written": (Entries, "write", False),
    "it was written": (Entries, "write", True),
    "markers are to be shown": (Visible, "show_all", False),
    "they were shown": (Visible, "show_all", True),
}


@pytest.mark.parametrize("ending", ["commit_transaction", "abort_transaction"])
@pytest.mark.parametrize("seam", SEAMS.values(), ids=SEAMS)
def test_an_interrupted_end_is_asked_for_again(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch, seam: tuple[Any, str, bool], ending: str
) -> None:
    with Producer(store, transactional_id="x", linger_ms=60_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        futures = [producer.send("a", b"1"), producer.send("b", b"2")]
        producer._accumulator.close_batch(producer._accumulator.queue(segstore.TopicPartition("b", 0)))
        futures[1].get(PATIENCE)
        owner, name, after = seam
        once(monkeypatch, owner, name, after=after)
        with pytest.raises(KeyboardInterrupt):
            getattr(producer, ending)()
        getattr(producer, ending)()
        assert all(future.is_done for future in futures)
        producer.begin_transaction()
        producer.send("a", b"3")
        producer.commit_transaction()
    kept = ending == "commit_transaction"
    assert all_committed(store, "a") == ([b"1", b"3"] if kept else [b"3"])
    assert all_committed(store, "b") == ([b"2"] if kept else [])


def test_an_abort_of_nothing_that_was_interrupted(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(store, transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        once(monkeypatch, Entries, "write", after=True)
        with pytest.raises(KeyboardInterrupt):
            producer.abort_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send("a", b"1")
        producer.commit_transaction()
    assert all_committed(store, "a") == [b"1"]


def test_one_who_was_overtaken_may_not_ask_for_its_abort_again(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(store, transactional_id="x") as first, Producer(store, transactional_id="x") as second:
        first.init_transactions()
        first.begin_transaction()
        once(monkeypatch, Entries, "write", after=True)
        with pytest.raises(KeyboardInterrupt):
            first.abort_transaction()
        second.init_transactions()
        with pytest.raises(segstore.errors.ProducerFencedError):
            first.abort_transaction()
        second.begin_transaction()
        second.send("a", b"1")
        second.commit_transaction()
    assert all_committed(store, "a") == [b"1"]


def test_an_interrupted_send_keeps_no_memory(store: segstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[FutureRecordMetadata] = []

    def fill() -> None:
        while True:
            sent.append(producer.send("a", b"x" * 50))

    with Producer(store, batch_size=300, buffer_memory=600, linger_ms=60_000) as producer:
        for owner, name in ((PartitionQueue, "settle"), (batch, "ProducerBatch"), (BufferPool, "allocate")):
            once(monkeypatch, owner, name, after=False)
            with pytest.raises(KeyboardInterrupt):
                fill()
        producer.flush(PATIENCE)
        assert all(future.succeeded() for future in sent)
        assert producer._accumulator.pool.available == 600


def test_a_close_that_was_interrupted_is_waited_for_by_the_next(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer(store, linger_ms=60_000)
    future = producer.send("a", b"1")
    once(monkeypatch, Accumulator, "refuse", after=True)
    with pytest.raises(KeyboardInterrupt):
        producer.close()
    producer.close()
    assert future.succeeded()
    assert not producer._sender.is_alive()


def test_no_second_coordinator_is_made_while_the_store_is_closed(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end, or begin, what the first one is ending."""
    real, told = TransactionCoordinator.close, []

    def close(coordinator: TransactionCoordinator) -> None:
        with pytest.raises(segstore.errors.StoreClosedError, match="being closed") as caught:
            shared(store, TransactionCoordinator)
        told.append(caught.value)
        real(coordinator)

    monkeypatch.setattr(TransactionCoordinator, "close", close)
    producer = Producer(store, transactional_id="x")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("a", b"1").get(PATIENCE)
    store.close()
    assert len(told) == 1
    with segstore.open(store.path, mode="r") as reader:
        assert all_committed(reader, "a") == []
    producer.close()
