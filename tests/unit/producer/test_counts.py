"""How often the producer's hot path takes locks, makes calls and so on: counts, where benchmarks have
times.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from faults import CountingFiles
from waiting import PATIENCE

import segstore
from segstore import Producer
from segstore.client.producer.accumulator import MOST_SEALED, Accumulator
from segstore.client.producer.config import ProducerConfig
from segstore.client.producer.future import FutureRecordMetadata
from segstore.coordinator.structs import TopicPartition
from segstore.coordinator.transaction.coordinator import TransactionCoordinator
from segstore.coordinator.transaction.state_log import Identity
from segstore.records import Template, single
from segstore.storage.store.partition_log import PartitionLog
from segstore.threads import Shelter


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        yield store


def logs_made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics of the logs that are made from now on."""
    made: list[str] = []
    init = PartitionLog.__init__

    def counted(self: PartitionLog, topic: str, *args: Any) -> None:
        made.append(topic)
        init(self, topic, *args)

    monkeypatch.setattr(PartitionLog, "__init__", counted)
    return made


def test_a_log_is_made_once_not_for_each_append(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = logs_made(monkeypatch)
    with Producer(store, enable_idempotence=False, acks=1) as producer:
        for _ in range(5):
            producer.send("t", b"v").get(PATIENCE)
    assert made == ["t"]


def test_the_logs_of_transactions_are_made_once(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(store, transactional_id="t") as producer:
        producer.init_transactions()
        made = ["nothing was counted"]
        for transaction in range(3):
            producer.begin_transaction()
            producer.send("t", b"v")
            producer.commit_transaction()
            if not transaction:
                made = logs_made(monkeypatch)
    assert made == []


def test_a_topic_made_anew_gets_what_comes_later(store: segstore.Store) -> None:
    """The log that the sender holds is the one of the topic that is there."""
    with Producer(store) as producer:
        assert producer.send("t", b"old").get(PATIENCE).offset == 0
        store.delete_topic("t")
        store.create_topic("t")
        assert producer.send("t", b"new").get(PATIENCE).offset == 0
    assert store.partition("t").read(0).values.tolist() == [b"new"]


SENT: dict[str, tuple[Any, int, int]] = {
    "a value": (None, 3, 40),
    "headers": ([("trace-id", b"0123456789abcdef"), ("é", None)], 3, 55),
}
"""Headers, and the calls of Python's in the thread that sends and in the sender's, at most."""


@pytest.mark.parametrize("case", SENT)
def test_a_record_that_is_sent_at_once(store_dir: Path, case: str) -> None:
    """With an id, which is the default: one call of C appends the record, by one write; few calls of Python
    are made in the thread that sends, and in that of the sender.
    """
    counted: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    main, counting = threading.get_ident(), False

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if counting and event == "call":
            counted[threading.get_ident() == main][frame.f_code.co_name] += 1
        elif counting and event == "c_call" and argument.__name__.startswith("seg_"):
            counted[threading.get_ident() == main][argument.__name__] += 1

    def send() -> None:
        future = producer.send("t", b"v", headers=headers)
        sys.setprofile(None)
        assert future.get(PATIENCE).offset >= 0
        while not producer._accumulator.gate.asleep:
            time.sleep(0.001)

    files, most, (headers, calls, later) = CountingFiles(), 5, SENT[case]
    threading.setprofile(profile)
    try:
        with segstore.open(store_dir, files=files) as store:
            store.create_topic("t")
            with Producer(store, linger_ms=0) as producer:
                for _ in range(5):
                    send()
                files.clear()
                counting = True
                for _ in range(most):
                    sys.setprofile(profile)
                    send()
                counting = False
                assert files.counts() == {"pwrite": most}
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    sending, sender = counted[True], counted[False]
    assert {name for name in sender if name.startswith("seg_")} == {"seg_tail_append", "seg_pwrite"}
    assert sender["seg_tail_append"] == most
    assert sending.total() <= calls * most, sending
    assert sender.total() <= later * most, sender


@pytest.mark.parametrize("sequences", [(0, 1, 2), (-1, 5, -1)])
def test_single_records_carry_their_own_sequences(sequences: tuple[int, ...]) -> None:
    """A thread's arguments for C are used again: nothing of the last record stays in them."""
    ids = [7 if sequence >= 0 else -1 for sequence in sequences]
    made = [
        single(b"v", template=Template(producer_id=i, producer_epoch=min(i, 1), base_sequence=s)).batches[0]
        for i, s in zip(ids, sequences, strict=True)
    ]
    assert [int(batch["base_sequence"]) for batch in made] == list(sequences)
    assert [int(batch["producer_id"]) for batch in made] == ids


@pytest.mark.parametrize("key", [None, b"key"])
def test_the_garbage_collector_finds_nothing_of_a_record(store: segstore.Store, key: bytes | None) -> None:
    n, most_others = 500, 50  # of the bench's list, and of what other threads do meanwhile
    with Producer(store, linger_ms=100_000, batch_size=1 << 20) as producer:
        producer.send("t", b"makes the queue", key)
        gc.collect()
        gc.disable()
        try:
            before = gc.get_count()[0]
            kept = [producer.send("t", b"value", key) for _ in range(n)]
            made = gc.get_count()[0] - before
        finally:
            gc.enable()
        assert made < most_others
        assert not any(map(gc.is_tracked, kept))
        producer.flush()
        assert {future.get(PATIENCE).serialized_key_size for future in kept} == {len(key) if key else -1}


def test_due_batches_are_closed_some_at_a_time_so_that_the_others_fill_on() -> None:
    accumulator = Accumulator(ProducerConfig.parse({}))
    queues = [accumulator.queue(TopicPartition("t", i)) for i in range(2 * MOST_SEALED + 1)]
    for queue in queues:
        future = FutureRecordMetadata()
        future._value, future._time = b"v", 1
        accumulator.append(queue, future, 100)
    drained = [[queue for queue, _ in accumulator.drain(time.monotonic())[0]] for _ in range(4)]
    assert drained == [queues[:MOST_SEALED], queues[MOST_SEALED:-1], queues[-1:], []]


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_a_transaction_is_ended_by_the_sender(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """One thread is waited for, and not first the sender, then that of the coordinator; a look without a
    thread finds the markers written.
    """
    threads: list[threading.Thread] = []
    calls: list[object] = []
    ended, call = TransactionCoordinator._end, Shelter.call

    def noted(self: TransactionCoordinator, *args: Any) -> Identity:
        threads.append(threading.current_thread())
        return ended(self, *args)

    def counted(self: Shelter, run: Callable[[], object]) -> object:
        calls.append(run)
        return call(self, run)

    with Producer(store, transactional_id="t") as producer:
        producer.init_transactions()
        monkeypatch.setattr(TransactionCoordinator, "_end", noted)
        monkeypatch.setattr(Shelter, "call", counted)
        for _ in range(3):
            producer.begin_transaction()
            producer.send("t", b"v")
            getattr(producer, end)()
        assert threads == [producer._sender] * 3
        assert len(calls) == 3


def test_a_state_is_appended_without_a_list_of_all_topics(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[object] = []
    topics = segstore.Store.topics
    with Producer(store, transactional_id="t") as producer:
        producer.init_transactions()
        for transaction in range(3):
            producer.begin_transaction()
            producer.send("t", b"v", partition=0)
            producer.commit_transaction()
            if not transaction:
                monkeypatch.setattr(
                    segstore.Store, "topics", lambda store: listed.append(store) or topics(store)
                )
    assert listed == []
