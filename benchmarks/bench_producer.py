"""How fast a producer sends, against one os.write a record, and how soon a record is seen by another thread.

Page cache, no sync on either side; a fresh topic and a fresh file for every round. A round of sending ends
with flush: every record is in the log and its future done.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Results, as_list, by_turns, random_values

import segstore

RECORDS = 300_000
LATENCIES, PAUSE = 2_000, 0.001


def _fresh(store: segstore.Store, partitions: int) -> None:
    if "t" in store.topics():
        store.delete_topic("t")
    store.create_topic("t", partitions=partitions)


@pytest.mark.parametrize("kept", [False, True], ids=["dropped", "kept"])
def test_send(benchmark: Any, results: Results, store: segstore.Store, tmp_path: Path, kept: bool) -> None:
    values, path = as_list(random_values(RECORDS)), tmp_path / "raw"

    def prepare() -> None:
        path.unlink(missing_ok=True)
        _fresh(store, 1)

    def ours() -> None:
        with segstore.Producer(store, linger_ms=5) as producer:
            send = producer.send
            if kept:
                futures = [send("t", value) for value in values]
            else:
                for value in values:
                    send("t", value)
        assert not kept or futures[-1].get().offset == RECORDS - 1

    def bare() -> None:
        with open(path, "wb", buffering=0) as file:
            fd, write = file.fileno(), os.write
            for value in values:
                write(fd, value)

    ratio, theirs, best = by_turns(benchmark, ours, bare, prepare, rounds=5)
    assert store.partition("t").end_offset == RECORDS
    note = f"of one os.write a record; {RECORDS / best / 1e6:.2f} to {RECORDS / theirs / 1e6:.2f} M/s"
    results.add(benchmark, f"send, futures {'kept' if kept else 'dropped'}", ratio, 0.8, "x", True, note)


@pytest.mark.parametrize("partitions", [1, 10, 100, 1_000])
def test_partitions(benchmark: Any, results: Results, store: segstore.Store, partitions: int) -> None:
    """Keys send each record to its partition: a curve, not a target."""
    values = as_list(random_values(RECORDS // 3))
    keys = [b"%d" % (i % (4 * partitions)) for i in range(len(values))]
    least = 0

    def send() -> None:
        nonlocal least
        with segstore.Producer(store, linger_ms=5) as producer:
            for value, key in zip(values, keys, strict=True):
                producer.send("t", value, key)
            least = int(producer.metrics()["producer-metrics"]["buffer-available-bytes"])

    benchmark.pedantic(send, setup=lambda: _fresh(store, partitions), rounds=3, warmup_rounds=1)
    rate = len(values) / min(benchmark.stats.stats.data) / 1e6
    note = f"keyed records; {((32 << 20) - least) >> 20} MiB of buffer_memory held at the end"
    results.add(benchmark, f"send over {partitions:,} partitions", rate, 0, "M/s", True, note)


def test_latency(benchmark: Any, results: Results, store: segstore.Store) -> None:
    """From send in one thread to the record's arrival in another that waits in Store.wait."""
    _fresh(store, 1)
    log, seen, sent = store.partition("t"), np.zeros(LATENCIES, np.int64), np.zeros(LATENCIES, np.int64)
    clock = time.perf_counter_ns

    def follow() -> None:
        offset = 0
        while offset < LATENCIES:
            publications = store.publications
            if log.end_offset > offset:
                records = log.read(offset)
                seen[offset : records.next_offset] = clock()
                offset = records.next_offset
            else:
                store.wait(publications, 1_000)

    def send() -> None:
        follower = threading.Thread(target=follow)
        follower.start()
        with segstore.Producer(store) as producer:
            for i in range(LATENCIES):
                time.sleep(PAUSE)
                sent[i] = clock()
                producer.send("t", b"x" * 100)
        follower.join()

    benchmark.pedantic(send, rounds=1)
    p50, p99 = np.percentile((seen - sent) / 1e3, [50, 99])
    results.add(
        benchmark, "send to read, linger_ms=0, p50", p50, 100, "us", False, "another thread, read included"
    )
    results.add(benchmark, "send to read, linger_ms=0, p99", p99, 1_000, "us", False, "")
