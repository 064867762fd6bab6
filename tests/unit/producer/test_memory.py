"""Counts the memory that is held by producers that are faster than the disk, and by consumers that are slower
than both.

Nothing is timed: disks write when the test lets them, and a consumer that stands still does so until the test
is over, so that a producer that waited for it would never finish.
"""

from __future__ import annotations

import os
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from consumers import earliest, fill, offsets, tp
from faults import HookedFiles
from stores import values
from waiting import PATIENCE

import segstore
from segstore.client.producer import Producer

VALUE = b"x" * 100


class TenthDisk(HookedFiles):
    """Takes one write for ten batches that were offered, or when those who offer can't go on without."""

    def __init__(self) -> None:
        self.writes = threading.Semaphore(0)
        self.off = threading.Event()
        self.off.set()

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name == "pwrite" and not self.off.is_set():
            assert self.writes.acquire(timeout=PATIENCE)


@contextmanager
def slow_disk(path: Path) -> Iterator[tuple[segstore.Store, TenthDisk]]:
    files = TenthDisk()
    with segstore.open(path, files=files) as store:
        store.create_topic("t", partitions=4)
        try:
            yield store, files
        finally:
            files.off.set()
            files.writes.release(1_000)


class Turner(threading.Thread):
    """Lets the disk write when a sender waits for memory; ends with `over`."""

    def __init__(self, disk: TenthDisk, producer: Producer) -> None:
        super().__init__(daemon=True)
        self._disk, self._pool, self._lock = disk, producer._accumulator.pool, producer._accumulator.lock
        self.over, self.waits, self.least = threading.Event(), 0, self._pool.total

    def run(self) -> None:
        while not self.over.wait(0.0005):
            with self._lock:
                waiting, available = self._pool.waiting, self._pool.available
            self.least = min(self.least, available)
            if waiting:
                self.waits += 1
                self._disk.writes.release()


@pytest.mark.parametrize("threads", [1, 3])
def test_memory_is_bounded_with_a_producer_ten_times_faster_than_the_disk(
    store_dir: Path, threads: int
) -> None:
    memory, block, each = 64_000, 4_000, 12_000 // threads
    with slow_disk(store_dir) as (store, disk):
        producer = Producer(store, batch_size=block, buffer_memory=memory)
        pool, most = producer._accumulator.pool, [0] * threads
        for i in range(100):  # what is made once is made before anything is counted
            producer.send("t", VALUE, partition=i % 4)
        producer.flush()
        disk.off.clear()

        def offer(mine: int) -> None:
            for i in range(each):
                producer.send("t", VALUE, partition=i // 30 % 4)
                if not i % 400:
                    disk.writes.release()
                    batches = list(producer._accumulator.incomplete.batches)
                    held = sum(batch.size for batch in batches if not batch.done)
                    most[mine] = max(most[mine], held)

        turner = Turner(disk, producer)
        offering = [threading.Thread(target=offer, args=(mine,)) for mine in range(threads)]
        tracemalloc.start()
        try:
            for thread in [turner, *offering]:
                thread.start()
            for thread in offering:
                thread.join(PATIENCE)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            turner.over.set()
        disk.off.set()
        disk.writes.release(1_000)
        producer.close()
        assert not any(thread.is_alive() for thread in offering)
        # It was felt, and never more was held than may be, of all that went through.
        assert turner.waits > 0
        assert pool.waited_seconds > 0
        assert 0 <= turner.least < block
        assert 0 < max(most) <= memory
        assert pool.made <= memory // block < pool.reused
        assert peak < 4 * memory < 12_000 * len(VALUE)
        assert pool.available == memory
        assert sum(store.partition("t", p).end_offset for p in range(4)) == 100 + each * threads


# --- consumers that stand still ---------------------------------------------------------------


def standing(store: segstore.Store, how: str, stop: threading.Event) -> tuple[Any, threading.Thread]:
    """A consumer that stands still until `stop`, and its thread, which has come to where it stands."""
    there = threading.Event()

    def deserialize(data: bytes) -> bytes:
        there.set()
        assert stop.wait(PATIENCE)
        return data

    settings = {"value_deserializer": deserialize} if how == "within a deserializer" else {}
    consumer = earliest(store, "t", max_poll_records=2, **settings)

    def work() -> None:
        if how == "between two polls":
            consumer.poll()
            there.set()
            stop.wait(PATIENCE)
        elif how == "within an iteration":
            next(consumer)
            there.set()
            stop.wait(PATIENCE)
        elif how == "with a table":
            table = consumer.poll_arrow()
            there.set()
            stop.wait(PATIENCE)
            assert table.num_rows > 0
        else:
            consumer.poll()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert there.wait(PATIENCE)
    return consumer, thread


STANDING = ["between two polls", "within an iteration", "with a table", "within a deserializer"]


@pytest.mark.parametrize("how", STANDING)
def test_a_consumer_that_stands_still_stops_no_producer(store_dir: Path, how: str) -> None:
    stop = threading.Event()
    with segstore.open(store_dir, config={"max.open.files": 16}) as store:
        fill(store, records=10, **{"segment.bytes": 50_000})
        consumer, thread = standing(store, how, stop)
        held, handles = consumer._fetcher._memory, len(os.listdir("/proc/self/fd"))
        with Producer(store, buffer_memory=1 << 20) as producer:
            futures = [producer.send("t", VALUE) for _ in range(5_000)]
            assert [future.get(PATIENCE).offset for future in futures] == list(range(10, 5_010))
            assert len(list((store_dir / "t-0").glob("*.log"))) >= 10
            # Neither do other ways to change the log wait for it.
            store.partition("t").delete_records(4_000)
            store.alter_topic("t", {"retention.ms": 1_000_000})
            store.flush()
            assert producer.send("t", VALUE).get(PATIENCE).offset == 5_010
            assert producer._accumulator.pool.available == 1 << 20
        # What it holds is what it held, however much was written meanwhile.
        assert consumer._fetcher._memory == held
        assert len(os.listdir("/proc/self/fd")) <= handles + 16
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        consumer.close()


def test_a_consumer_that_is_far_behind_holds_one_fetch(store_dir: Path) -> None:
    with segstore.open(store_dir) as store, Producer(store) as producer:
        store.create_topic("t", partitions=4, config={"segment.bytes": 100_000})
        settings = {"max_partition_fetch_bytes": 20_000, "fetch_max_bytes": 50_000, "max_poll_records": 3}
        with earliest(store, "t", **settings) as consumer:
            most, batch = 0, 20_000
            for round_ in range(20):
                for i in range(400):
                    producer.send("t", VALUE, partition=i % 4)
                producer.flush()
                consumer.poll()
                most = max(most, consumer._fetcher._memory)
                assert len(consumer._fetcher._buffers) <= 4, round_
            assert 0 < most <= 2 * (50_000 + batch)
            got = offsets([r for part in consumer.poll().values() for r in part], 0)
            assert got == sorted(got)


def test_a_slow_consumer_loses_nothing(store_dir: Path) -> None:
    with segstore.open(store_dir) as store, Producer(store) as producer:
        store.create_topic("t")
        with earliest(store, "t", max_poll_records=1) as consumer:
            got: list[int] = []
            for i in range(200):
                for _ in range(5):
                    producer.send("t", b"%d" % i)
                producer.flush()
                got += [r.offset for part in consumer.poll().values() for r in part]
            assert got == list(range(200))
            while polled := consumer.poll(max_records=300):
                got += offsets(polled[tp()])
        assert got == list(range(1_000))
        assert len(values(store.partition("t"))) == 1_000
