"""The producer's stages one by one: partitioners, serializers, interceptors, the buffer pool, metrics."""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from stores import records
from struck import struck
from waiting import PATIENCE, until

import segstore
from segstore import errors
from segstore.client.producer import Producer, ProducerRecord, RecordMetadata
from segstore.client.producer.buffer_pool import BufferPool, Owner, Waiter
from segstore.client.producer.lock import ProducerLock


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.create_topic("seven", partitions=7)
        yield store


# --- partitioners -----------------------------------------------------------------------------


def test_keys_go_where_kafka_python_sends_them(store: segstore.Store, rng: random.Random) -> None:
    partitioner = pytest.importorskip("kafka.partitioner.default")
    keys = [rng.randbytes(rng.randrange(1, 20)) for _ in range(300)] * 2
    with Producer(store) as producer:
        futures = [producer.send("seven", b"x", key=key) for key in keys]
        producer.flush()
    expected = [(partitioner.murmur2(key) & 0x7FFFFFFF) % 7 for key in keys]
    assert [future.get(0).partition for future in futures] == expected


def test_kafka_pythons_own_partitioner_may_be_given(store: segstore.Store, rng: random.Random) -> None:
    partitioner = pytest.importorskip("kafka.partitioner").DefaultPartitioner()
    keys = [rng.randbytes(5) for _ in range(100)]
    with Producer(store) as ours, Producer(store, partitioner=partitioner) as theirs:
        for key in keys:
            a, b = (producer.send("seven", None, key=key).get(PATIENCE) for producer in (ours, theirs))
            assert a.partition == b.partition
        assert 0 <= theirs.send("seven", b"x").get(PATIENCE).partition < 7


def test_a_callable_chooses(store: segstore.Store) -> None:
    asked: list[Any] = []

    def choose(key: bytes | None, partitions: list[int], available: list[int]) -> int:
        asked.append((key, partitions, available))
        return 5

    with Producer(store, partitioner=choose, key_serializer=lambda key: key and key.encode()) as producer:
        assert producer.send("seven", b"x", key="k").get(PATIENCE).partition == 5
        assert producer.send("seven", b"x").get(PATIENCE).partition == 5
        assert producer.send("seven", b"x", partition=2).get(PATIENCE).partition == 2
    assert asked == [(b"k", list(range(7)), list(range(7))), (None, list(range(7)), list(range(7)))]


def test_records_without_a_key_stick_for_a_batch_and_spread_evenly(store: segstore.Store) -> None:
    with Producer(store, batch_size=1_061, linger_ms=60_000) as producer:
        futures = [producer.send("seven", b"x" * 88) for _ in range(14_000)]
        producer.flush()
    went = [future.get(0).partition for future in futures]
    # Ten records of 100 bytes fill a batch; then another partition is drawn, which may be the same.
    assert all(len(set(went[i : i + 10])) == 1 for i in range(0, 14_000, 10))
    counts = Counter(went)
    assert set(counts) == set(range(7))
    assert max(counts.values()) < 1.5 * min(counts.values())
    batches = store.partition("seven", 0).read(0, 1 << 30).batches
    assert batches["count"].tolist() == [10] * len(batches)


def test_slow_records_do_not_stick_for_ever(store: segstore.Store) -> None:
    with Producer(store, batch_size=500) as producer:
        went = [producer.send("seven", b"x" * 88).get(PATIENCE).partition for _ in range(800)]
    changes = sum(a != b for a, b in pairwise(went))
    assert 60 < changes <= 200
    assert set(went) == set(range(7))


# --- serializers -------------------------------------------------------------------------------


class Upper:
    """kafka-python's kind of serializer."""

    def __init__(self) -> None:
        self.closed = 0

    def serialize(self, topic: str, headers: Any, data: str | None) -> bytes | None:
        return None if data is None else f"{topic} {len(headers or ())} {data}".upper().encode()

    def close(self) -> None:
        self.closed += 1


def test_serializers_of_both_kinds(store: segstore.Store) -> None:
    upper = Upper()
    with Producer(
        store, key_serializer=lambda key: key and str(key).encode(), value_serializer=upper
    ) as producer:
        producer.send("t", "x", key=5, headers=[("a", b"")])
        producer.send("t", None)
    assert [(r.key, r.value) for r in records(store.partition("t"))] == [(b"5", b"T 1 X"), (None, None)]
    assert upper.closed == 1


# --- interceptors --------------------------------------------------------------------------------


class Hook:
    """Adds its name to each value, and keeps what it is told."""

    def __init__(self, name: str = "") -> None:
        self.name, self.told, self.closed = name, [], 0

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record._replace(value=record.value + self.name)

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        self.told.append((metadata and metadata.offset, type(error)))

    def close(self) -> None:
        self.closed += 1


class Failing(Hook):
    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        raise RuntimeError("on_send")

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        raise RuntimeError("on_acknowledgement")


class Forgetful(Hook):
    def on_send(self, record: ProducerRecord) -> None:  # type: ignore[override]
        pass


class Listening:
    """Sees outcomes only."""

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        pass


HOOKS = {
    "one": ([Hook("a")], "xa"),
    "in order": ([Hook("a"), Hook("b")], "xab"),
    "one fails": ([Hook("a"), Failing(), Hook("b")], "xab"),
    "one gives nothing": ([Forgetful(), Hook("b")], "xb"),
    "one only listens": ([Listening(), Hook("b")], "xb"),
}


@pytest.mark.parametrize(("hooks", "value"), HOOKS.values(), ids=HOOKS)
def test_interceptors_see_every_record_and_lose_none(
    store: segstore.Store, hooks: list[Any], value: str
) -> None:
    with Producer(store, interceptors=hooks, value_serializer=lambda value: value.encode()) as producer:
        for _ in range(3):
            producer.send("t", "x")
        producer.flush()
        with pytest.raises(errors.UnknownTopicOrPartitionError):
            producer.send("t", "x", partition=9)
    assert [r.value.decode() for r in records(store.partition("t"))] == [value] * 3
    expected = [*((i, type(None)) for i in range(3)), (None, errors.UnknownTopicOrPartitionError)]
    for hook in hooks:
        if type(hook) is Hook:
            assert hook.told == expected
            assert hook.closed == 1


# --- the buffer pool ---------------------------------------------------------------------------------


def free(pool: BufferPool, size: int) -> None:
    owner = Owner()
    owner.block = size
    pool.give_back(owner)


def test_blocks_are_reused_and_other_sizes_are_not_kept() -> None:
    pool = BufferPool(1_000, 100)
    for _ in range(5):
        assert pool.allocate(100)
        free(pool, 100)
    assert (pool.made, pool.reused, pool.available) == (1, 4, 1_000)
    for size in (100, 100, 100):
        assert pool.allocate(size)
    for size in (100, 100, 100):
        free(pool, size)
    assert pool.allocate(950)
    assert pool.available == 50
    assert not pool.allocate(100)
    with pytest.raises(errors.BufferExhaustedError):
        pool.wait_until(partial(pool.allocate, 100), 100, 0.01)
    assert (pool.exhausted, pool.waiting, pool.available) == (1, 0, 50)
    free(pool, 950)
    assert pool.available == 1_000


class Waiting:
    """A full pool and its lock, and threads that wait for memory of it."""

    def __init__(self) -> None:
        self.pool, self.lock = BufferPool(100, 10), ProducerLock()
        self.served: list[int] = []
        assert self.pool.allocate(100)

    def take(self, size: int, seconds: float = PATIENCE) -> None:
        self.pool.wait_until(partial(self._allocated, size), size, seconds)

    def _allocated(self, size: int, waiter: Waiter) -> bool:
        with self.lock:
            done = self.pool.allocate(size, waiter)
            if done:
                self.served.append(size)
            return done

    def start(self, size: int) -> threading.Thread:
        before = self.pool.waiting
        thread = threading.Thread(target=self.take, args=(size,))
        thread.start()
        until(lambda: self.pool.waiting > before)
        return thread

    def free(self, size: int) -> None:
        with self.lock:
            free(self.pool, size)


def test_who_waits_first_is_served_first() -> None:
    waiting = Waiting()
    threads = [waiting.start(size) for size in (60, 10, 20)]
    waiting.free(10)  # enough for the second, who is not first
    time.sleep(0.02)
    assert waiting.served == []
    waiting.free(90)
    for thread in threads:
        thread.join(PATIENCE)
    assert waiting.served == [60, 10, 20]
    assert waiting.pool.waiting == 0


@pytest.mark.parametrize("twice", [False, True])
def test_who_is_interrupted_while_it_waits_holds_nobody_up(rng: random.Random, twice: bool) -> None:
    for place in count(1):
        waiting = Waiting()

        def work() -> None:
            with contextlib.suppress(errors.BufferExhaustedError):
                waiting.take(10, 0.001)  # noqa: B023 - called in this turn

        came = struck(work, place, *([rng.randrange(1, 9)] if twice else []))
        assert not waiting.lock.owned
        assert waiting.pool.waiting == 0
        behind = waiting.start(50)
        waiting.free(100)
        behind.join(PATIENCE)
        assert waiting.served == [50]
        if not came:
            break
    assert place > 10


# --- metrics --------------------------------------------------------------------------------------


def test_metrics_have_kafkas_names_and_groups(store: segstore.Store) -> None:
    with Producer(store, linger_ms=60_000, compression_type="zstd", batch_size=1_000) as producer:
        assert math.isnan(producer.metrics()["producer-metrics"]["batch-size-avg"])
        for _ in range(100):
            producer.send("t", b"x" * 88)
        producer.flush()
        metrics = producer.metrics()
    ours = metrics["producer-metrics"]
    assert ours["record-send-total"] == 100
    assert ours["record-send-rate"] > 0
    assert ours["byte-total"] == store.partition("t").size
    assert ours["batch-size-avg"] < 400
    assert 0 < ours["compression-rate-avg"] < 0.4
    assert ours["records-per-request-avg"] <= 100
    assert 90 <= ours["record-size-avg"] <= 101
    assert ours["record-queue-time-max"] >= 0
    assert ours["record-error-total"] == ours["record-retry-total"] == 0
    assert ours["buffer-total-bytes"] == ours["buffer-available-bytes"] == 32 << 20
    assert metrics["producer-topic-metrics.t"]["record-send-total"] == 100
    assert metrics["kafka-metrics-count"]["count"] == sum(map(len, metrics.values()))


def test_metrics_may_be_off(store: segstore.Store) -> None:
    with Producer(store, metrics_enabled=False) as producer:
        producer.send("t", b"x").get(PATIENCE)
        assert producer.metrics() is None


@pytest.mark.parametrize("second", [0, 1, 2, 3, 4, 5, 6])
def test_interrupts_as_a_batch_is_opened_take_no_memory_along(store: segstore.Store, second: int) -> None:
    """Nor does a second one that comes as the block of a batch without a record is given back."""
    with Producer(store, linger_ms=5, batch_size=200, buffer_memory=400, max_request_size=400) as producer:
        producer.send("t", b"x" * 60).get(PATIENCE)  # what is looked up once would be struck alone
        for place in count(1):
            # With a partition a record takes the long way, on which Python opens the batch.
            came = struck(lambda: producer.send("t", b"x" * 60, partition=0), place)
            if second:
                struck(producer.flush, second)
            producer.flush(PATIENCE)
            assert producer._accumulator.pool.available == 400, place
            if not came:
                break
        assert place > 10


def test_who_waits_for_memory_and_is_gone_holds_nobody_up() -> None:
    """Two interrupts may keep `wait_until` from taking a thread out of the line."""
    pool = BufferPool(100, 10)
    gone: Waiter = SimpleQueue()
    pool.waiters.append(weakref.ref(gone))
    assert not pool.allocate(10)
    del gone
    assert pool.waiting == 0
    assert pool.allocate(10)
