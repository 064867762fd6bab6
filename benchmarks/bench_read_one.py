"""`read_one` beside LMDB's get, by turns: random offsets, warm, uncompressed, the CRC of each batch checked.

On disk: a store and an LMDB environment with the same records. A get is a read transaction of its own, as an
application makes one for each look-up; it gives the value and its timestamp, packed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import lmdb
import numpy as np
import pytest
from harness import (
    MAP_BYTES,
    SEED,
    STAMP,
    Results,
    as_list,
    by_turns,
    keep_ratios,
    lmdb_append,
    lmdb_open,
    new_log,
    random_values,
    stamps,
)

import segstore

RECORDS = 500_000
READS, ROUNDS = 10_000, 7
SIZES = pytest.mark.parametrize(("batch_bytes", "most"), [(4096, 5), (65536, 12)], ids=["4KiB", "64KiB"])


def p50(read: Callable[[int], object], offsets: Sequence[int]) -> float:
    """In ns, of one call each."""
    clock, took = time.perf_counter_ns, []
    for offset in offsets:
        began = clock()
        read(offset)
        took.append(clock() - began)
    return median(took)


def offsets_of(reads: int) -> list[int]:
    random = Random(SEED)
    return [random.randrange(RECORDS) for _ in range(reads)]


def compared(
    benchmark: Any, read: Callable[[int], object], reference: Callable[[int], object]
) -> tuple[float, float, float]:
    """p50 of `read` as a multiple of the reference's, the median of all rounds; and both in ns."""
    offsets = offsets_of(READS)
    mine, theirs = list[float](), list[float]()
    by_turns(
        benchmark,
        lambda: mine.append(p50(read, offsets)),
        lambda: theirs.append(p50(reference, offsets)),
        rounds=ROUNDS,
    )
    pairs = list(zip(mine[1:], theirs[1:], strict=True))
    keep_ratios(benchmark, [their / my for my, their in pairs])
    return median(my / their for my, their in pairs), median(mine[1:]), median(theirs[1:])


def filled(store: segstore.Store, batch_bytes: int) -> segstore.PartitionLog:
    log = new_log(store, "t")
    log.append_batch(random_values(RECORDS), timestamps=stamps(RECORDS), batch_bytes=batch_bytes)
    return log


def check(log: segstore.PartitionLog) -> None:
    """What is read is what was written."""
    values, times = random_values(RECORDS), stamps(RECORDS)
    for at in offsets_of(100):
        assert log.read_one(at) == (at, int(times[at]), None, values[at].tobytes(), [])


@SIZES
def test_read_one(
    benchmark: Any, results: Results, store: segstore.Store, tmp_path: Path, batch_bytes: int, most: float
) -> None:
    log, values = filled(store, batch_bytes), random_values(RECORDS)
    with lmdb_open(tmp_path / "lmdb") as env:
        lmdb_append(env, as_list(values))
    # With locks its read transactions are quicker: it uses them again.
    with lmdb.open(str(tmp_path / "lmdb"), map_size=MAP_BYTES, readonly=True) as env:

        def get(offset: int) -> bytes:
            with env.begin() as transaction:
                return transaction.get(offset.to_bytes(8, "big"))

        ratio, ours, theirs = compared(benchmark, log.read_one, get)
        check(log)
        assert all(get(at)[STAMP.size :] == values[at].tobytes() for at in offsets_of(100))
    name = f"read_one, batches of {batch_bytes // 1024} KiB, of LMDB's get"
    note = f"p50 {ours / 1e3:.1f} us, LMDB {theirs / 1e3:.2f}"
    results.add(benchmark, name, ratio, most, "times", False, note)


@SIZES
def test_read_one_of_another_process_log(
    benchmark: Any, results: Results, store: segstore.Store, batch_bytes: int, most: float
) -> None:
    log = filled(store, batch_bytes)
    with segstore.open(store.path, "r") as reading:
        follower = reading.partition("t", 0)
        ratio, ours, theirs = compared(benchmark, follower.read_one, log.read_one)
        check(follower)
    name = f'read_one in "r", batches of {batch_bytes // 1024} KiB, of the writer\'s'
    results.add(benchmark, name, ratio, 1.3, "times", False, f"p50 {ours / 1e3:.1f} us, {theirs / 1e3:.1f}")


@SIZES
def test_read_many(
    benchmark: Any, results: Results, store: segstore.Store, batch_bytes: int, most: float
) -> None:
    """Random offsets in one call, beside one call each."""
    log, offsets = filled(store, batch_bytes), offsets_of(READS)
    asked = np.array(offsets)
    ratio, theirs, ours = by_turns(
        benchmark, lambda: log.read_many(asked), lambda: [log.read_one(at) for at in offsets], rounds=ROUNDS
    )
    values = random_values(RECORDS)
    assert log.read_many(asked).values == [values[at].tobytes() for at in offsets]
    name = f"read_many, batches of {batch_bytes // 1024} KiB, of read_one for each"
    note = f"{ours / READS * 1e6:.2f} us a record, {theirs / READS * 1e6:.2f}"
    results.add(benchmark, name, ratio, 1.0, "times", True, note)
