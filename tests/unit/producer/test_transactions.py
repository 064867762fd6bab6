"""A producer's transactions: all of one is seen, or nothing, and only one producer has an id."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import FailingFiles
from stores import committed_values, values
from waiting import PATIENCE, until

import segstore
from segstore import Consumer, OffsetAndMetadata, Producer, TopicPartition, errors
from segstore.client.producer.accumulator import Accumulator
from segstore.client.producer.batch import ProducerBatch
from segstore.client.producer.delivery import Appender
from segstore.client.producer.ending import ProducerEnding
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared
from segstore.coordinator.transaction.coordinator import TransactionCoordinator
from segstore.coordinator.transaction.metadata import TransactionState

CONFIG = {"transaction.state.log.num.partitions": 2, "offsets.topic.num.partitions": 2}
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, config=CONFIG) as store:
        store.create_topic("a", partitions=2)
        store.create_topic("b")
        yield store


@pytest.fixture
def producer(store: segstore.Store) -> Iterator[Producer]:
    with Producer(store, transactional_id="x", retry_backoff_ms=1) as producer:
        producer.init_transactions()
        yield producer


def seen(store: segstore.Store, topic: str = "a", partition: int = 0) -> list[bytes | None]:
    """What read_committed gives."""
    return committed_values(store.partition(topic, partition))


def test_all_of_a_transaction_is_seen_at_once(store: segstore.Store, producer: Producer) -> None:
    producer.begin_transaction()
    futures = [producer.send("a", b"%d" % i, partition=i % 2) for i in range(10)]
    producer.send("b", b"too")
    producer.flush()
    assert [future.get(0).offset for future in futures] == [i // 2 for i in range(10)]
    assert seen(store) == seen(store, "a", 1) == seen(store, "b") == []
    assert len(values(store.partition("a"))) == 5
    producer.commit_transaction()
    assert seen(store) == [b"0", b"2", b"4", b"6", b"8"]
    assert seen(store, "b") == [b"too"]
    with Consumer(store, "b", isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        assert [record.value for record in next(iter(consumer.poll(1000).values()))] == [b"too"]


def test_nothing_of_an_aborted_one_is_seen(store: segstore.Store, producer: Producer) -> None:
    for name in (b"first", b"second", b"third", b"fourth"):
        producer.begin_transaction()
        producer.send("a", name, partition=0).get(PATIENCE)
        producer.send("b", name)
        if name in (b"second", b"third"):
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    assert seen(store) == seen(store, "b") == [b"first", b"fourth"]
    assert values(store.partition("a")) == [b"first", b"second", b"third", b"fourth"]


def test_what_was_not_written_is_dropped_by_an_abort(store: segstore.Store) -> None:
    told: list[Any] = []
    with Producer(store, transactional_id="x", linger_ms=60_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        written = producer.send("a", b"written", partition=0)
        producer.flush()
        dropped = [producer.send("a", b"%d" % i, partition=1).add_errback(told.append) for i in range(5)]
        producer.abort_transaction()
        assert written.succeeded()
        for future in dropped:
            assert isinstance(future.exception, errors.TransactionAbortedError)
        assert len(told) == 5
        assert producer.metrics()["producer-metrics"]["buffer-available-bytes"] == 32 << 20
        producer.begin_transaction()
        last = producer.send("a", b"next", partition=1)
        producer.commit_transaction()
        assert last.get(0).offset == 0
    assert (seen(store), seen(store, "a", 1)) == ([], [b"next"])


def test_empty_transactions(store: segstore.Store, producer: Producer) -> None:
    for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        end()
    producer.begin_transaction()
    producer.send("b", b"v")
    producer.commit_transaction()
    assert seen(store, "b") == [b"v"]
    assert store.partition("b").end_offset == 2


def test_each_transaction_has_an_epoch_in_which_sequences_begin_anew(
    store: segstore.Store, producer: Producer
) -> None:
    for commit in (True, True, False, True):
        producer.begin_transaction()
        producer.send("b", b"1")
        producer.flush()
        producer.send("b", b"2").get(PATIENCE)
        producer.commit_transaction() if commit else producer.abort_transaction()
    batches = store.partition("b").read(0, 1 << 20).batches
    control = batches["attributes"] == 0x30
    assert batches["base_sequence"][~control].tolist() == [0, 1] * 4
    assert batches["producer_epoch"][~control].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert batches["producer_epoch"][control].tolist() == [1, 2, 3, 4]
    assert set(batches["attributes"].tolist()) == {0x10, 0x30}


def test_another_takes_over(store: segstore.Store, producer: Producer) -> None:
    producer.begin_transaction()
    producer.send("a", b"old", partition=0).get(PATIENCE)
    with Producer(store, transactional_id="x") as newer:
        newer.init_transactions()
        assert seen(store) == []
        assert store.partition("a").last_stable_offset == 2  # it was aborted, nobody waits for it
        newer.begin_transaction()
        newer.send("a", b"new", partition=0)
        late = producer.send("a", b"late", partition=0)
        with pytest.raises(errors.ProducerFencedError):
            late.get(PATIENCE)
        for call in CALLS.values():
            with pytest.raises(errors.ProducerFencedError):
                call(producer)
        newer.commit_transaction()
    producer.close()
    assert seen(store) == [b"new"]
    assert b"late" not in values(store.partition("a"))


CALLS: dict[str, Callable[[Producer], object]] = {
    "init": lambda p: p.init_transactions(),
    "begin": lambda p: p.begin_transaction(),
    "send": lambda p: p.send("a", b"x"),
    "send with a key": lambda p: p.send("a", b"x", key=b"k"),
    "send the long way": lambda p: p.send("a", b"x", headers=[("h", b"")]),
    "offsets": lambda p: p.send_offsets_to_transaction({A0: OffsetAndMetadata(1)}, "g"),
    "commit": lambda p: p.commit_transaction(),
    "abort": lambda p: p.abort_transaction(),
}
SENDS = {"send", "send with a key", "send the long way"}


@pytest.mark.parametrize("name", sorted(set(CALLS) - {"init"}))
def test_before_init_transactions_nothing_is_allowed(store: segstore.Store, name: str) -> None:
    with (
        Producer(store, transactional_id="x") as producer,
        pytest.raises(errors.IllegalStateError, match=r"init_transactions\(\) was not called"),
    ):
        CALLS[name](producer)


@pytest.mark.parametrize("name", sorted(set(CALLS) - {"init", "begin"}))
def test_outside_of_a_transaction(store: segstore.Store, producer: Producer, name: str) -> None:
    for _ in range(2):
        with pytest.raises(errors.IllegalStateError, match="there is no transaction"):
            CALLS[name](producer)
        producer.begin_transaction()
        producer.send("b", b"v")
        producer.commit_transaction()
    assert store.partition("a").end_offset == 0


@pytest.mark.parametrize("name", sorted(set(CALLS) - SENDS))
def test_without_a_transactional_id(store: segstore.Store, name: str) -> None:
    with (
        Producer(store) as producer,
        pytest.raises(errors.IllegalStateError, match="has no transactional_id"),
    ):
        CALLS[name](producer)


@pytest.mark.parametrize("name", CALLS)
def test_a_closed_producer(store: segstore.Store, producer: Producer, name: str) -> None:
    producer.close()
    with pytest.raises(errors.ClientClosedError):
        CALLS[name](producer)


def test_begin_within_a_transaction(producer: Producer) -> None:
    producer.begin_transaction()
    with pytest.raises(errors.IllegalStateError, match="a transaction is open"):
        producer.begin_transaction()
    producer.init_transactions()  # a second call does nothing
    producer.abort_transaction()


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_an_end_in_a_callback(store: segstore.Store, end: str) -> None:
    caught: list[BaseException] = []

    def called(_: Any) -> None:
        try:
            getattr(producer, end)()
        except errors.InvalidArgumentError as error:
            caught.append(error)

    # It lingers until it has its callback, which would be called here else.
    with Producer(store, transactional_id="x", linger_ms=60_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("b", b"v").add_callback(called)
        producer.flush()
        assert "in a callback" in str(caught[0])
        producer.commit_transaction()


def test_a_timeout_above_what_the_store_allows(store: segstore.Store) -> None:
    with (
        Producer(store, transactional_id="x", transaction_timeout_ms=900_001) as producer,
        pytest.raises(errors.InvalidTxnTimeoutError, match=r"900001.*900000"),
    ):
        producer.init_transactions()


def test_a_record_that_fails_leaves_only_the_abort(store: segstore.Store, producer: Producer) -> None:
    store.alter_topic("b", {"max.message.bytes": 300})
    producer.begin_transaction()
    producer.send("a", b"good", partition=0)
    bad = producer.send("b", b"x" * 400)
    assert isinstance(bad.exception or _wait(bad), errors.RecordTooLargeError)
    for name in ("send", "offsets", "commit"):
        with pytest.raises(errors.TransactionAbortedError, match="abort_transaction") as caught:
            CALLS[name](producer)
        assert isinstance(caught.value.__cause__, errors.RecordTooLargeError)
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send("b", b"small")
    producer.commit_transaction()
    assert (seen(store), seen(store, "b")) == ([], [b"small"])


def _wait(future: Any) -> BaseException | None:
    with pytest.raises(errors.SegstoreError):
        future.get(PATIENCE)
    return future.exception


def test_a_record_that_fails_within_the_commit(store: segstore.Store) -> None:
    store.alter_topic("b", {"max.message.bytes": 300})
    with Producer(store, transactional_id="x", linger_ms=60_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        futures = [producer.send("b", value) for value in (b"1", b"x" * 400, b"2")]
        with pytest.raises(errors.TransactionAbortedError):
            producer.commit_transaction()
        assert futures[0].succeeded()
        producer.abort_transaction()
    assert seen(store, "b") == []


def test_closing_aborts_what_is_open(store: segstore.Store) -> None:
    with Producer(store, transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("a", b"v", partition=0)
    log = store.partition("a")
    assert (seen(store), log.last_stable_offset, log.end_offset) == ([], 2, 2)


def test_closing_the_store_aborts_what_is_open(store_dir: Path) -> None:
    with segstore.open(store_dir, config=CONFIG) as store:
        store.create_topic("a")
        producer = Producer(store, transactional_id="x")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("a", b"v").get(PATIENCE)
    producer.close()
    with segstore.open(store_dir, mode="r") as store:
        assert store.partition("a").last_stable_offset == store.partition("a").end_offset == 2
        assert seen(store) == []


# --- disks and threads ----------------------------------------------------------------------------


def test_a_commit_is_made_though_the_sender_has_ended(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender ends between the look whether the producer is open and the request to it."""
    producer = Producer(store, transactional_id="x")
    closing = threading.Thread(target=producer.close, daemon=True)
    after_all = Accumulator.after_all

    def closed_first(self: Accumulator, work: Callable[[], None]) -> None:
        closing.start()
        until(lambda: self._ended)
        after_all(self, work)

    producer.init_transactions()
    producer.begin_transaction()
    producer.send("a", b"v", partition=0).get(PATIENCE)
    monkeypatch.setattr(Accumulator, "after_all", closed_first)
    committing = threading.Thread(target=producer.commit_transaction, daemon=True)
    committing.start()
    for thread in (committing, closing):
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert seen(store) == [b"v"]


def test_a_commit_fails_when_another_thread_closes_the_producer(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records wait for a retry, and the sender sleeps: it is woken, and commits nothing without them."""
    raised: list[BaseException] = []
    refused = threading.Event()

    def refuse(self: Appender, batches: list[ProducerBatch]) -> None:
        refused.set()
        raise errors.StorageError(errno.ENOSPC, "no room")

    def commit() -> None:
        try:
            producer.commit_transaction()
        except errors.SegstoreError as error:
            raised.append(error)

    producer = Producer(store, transactional_id="x", retry_backoff_ms=10 * PATIENCE * 1000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("a", b"written", partition=0).get(PATIENCE)
    monkeypatch.setattr(Appender, "append", refuse)
    failed = producer.send("a", b"refused", partition=0)
    assert refused.wait(PATIENCE)
    until(lambda: producer._accumulator.gate.asleep)
    committing = threading.Thread(target=commit, daemon=True)
    committing.start()
    until(lambda: producer._accumulator._after)
    give_up = ProducerEnding._give_up

    def when_asleep(self: ProducerEnding, *args: Any) -> None:
        until(lambda: producer._accumulator.gate.asleep)
        give_up(self, *args)

    monkeypatch.setattr(ProducerEnding, "_give_up", when_asleep)
    producer.close(timeout=0)
    committing.join(PATIENCE)
    assert not committing.is_alive()
    assert [type(error) for error in raised] == [errors.TransactionAbortedError]
    with pytest.raises(errors.ClientClosedError):
        failed.get(PATIENCE)
    monkeypatch.undo()
    producer.close()
    assert seen(store) == []


def test_a_full_disk_is_waited_for(store_dir: Path) -> None:
    files = FailingFiles({"pwrite"}, OSError(errno.ENOSPC, "No space left on device"), 0)
    with segstore.open(store_dir, config=CONFIG, files=files) as store:
        store.create_topic("a", partitions=2)
        with Producer(store, transactional_id="x", retry_backoff_ms=1) as producer:
            files.arm(1, 3)
            producer.init_transactions()
            for first in range(1, 8):
                producer.begin_transaction()
                files.arm(first, 2)
                for i in range(6):
                    producer.send("a", b"%d" % i, partition=i % 2)
                producer.send_offsets_to_transaction({A0: OffsetAndMetadata(first)}, "g")
                producer.commit_transaction()
                files.arm(0)
        assert seen(store) == [b"0", b"2", b"4"] * 7
        assert seen(store, "a", 1) == [b"1", b"3", b"5"] * 7
        assert shared(store, GroupOffsets).fetch("g") == {A0: OffsetAndMetadata(7)}


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_an_end_that_takes_too_long_may_be_asked_for_again(store_dir: Path, end: str) -> None:
    files = FailingFiles({"pwrite"}, OSError(errno.ENOSPC, "No space left on device"), 0)
    with segstore.open(store_dir, config=CONFIG, files=files) as store:
        store.create_topic("a")
        with Producer(store, transactional_id="x", max_block_ms=20, retry_backoff_ms=1) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("a", b"v").get(PATIENCE)
            files.arm(1, 1 << 30)
            with pytest.raises(errors.KafkaTimeoutError, match=rf"{end}.*max_block_ms=20"):
                getattr(producer, end)()
            other = {"commit_transaction", "abort_transaction"} - {end}
            with pytest.raises(errors.IllegalStateError):
                getattr(producer, other.pop())()
            files.arm(0)
            getattr(producer, end)()
        assert seen(store) == ([b"v"] if end == "commit_transaction" else [])


def test_threads_share_a_transaction(store: segstore.Store, producer: Producer) -> None:
    for round_ in range(5):
        producer.begin_transaction()
        threads = [
            threading.Thread(target=lambda t=t: [producer.send("a", b"%d %d" % (t, i)) for i in range(200)])
            for t in range(4)
        ]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        producer.commit_transaction() if round_ % 2 == 0 else producer.abort_transaction()
    found = seen(store) + seen(store, "a", 1)
    expected = sorted(b"%d %d" % (t, i) for t in range(4) for i in range(200))
    assert sorted(found) == sorted(expected * 3)


def test_of_two_who_end_it_one_does(store: segstore.Store, producer: Producer) -> None:
    producer.begin_transaction()
    producer.send("a", b"v", partition=0)
    told: list[BaseException | None] = []

    def commit() -> None:
        try:
            producer.commit_transaction()
            told.append(None)
        except errors.IllegalStateError as error:
            told.append(error)

    threads = [threading.Thread(target=commit) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert told.count(None) == 1
    assert seen(store) == [b"v"]


def test_many_ids_at_once(store: segstore.Store) -> None:
    def work(name: str) -> None:
        with Producer(store, transactional_id=name) as producer:
            producer.init_transactions()
            for i in range(20):
                producer.begin_transaction()
                producer.send("a", b"%s %d" % (name.encode(), i), partition=i % 2)
                producer.send("b", b"%s %d" % (name.encode(), i))
                producer.commit_transaction() if i % 3 else producer.abort_transaction()

    threads = [threading.Thread(target=work, args=(f"id {n}",)) for n in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    expected = sorted(b"id %d %d" % (n, i) for n in range(4) for i in range(20) if i % 3)
    assert sorted(seen(store, "b")) == sorted(seen(store) + seen(store, "a", 1)) == expected
    states = shared(store, TransactionCoordinator).transactions().values()
    assert {known.state for known in states} == {TransactionState.COMPLETE_COMMIT}
