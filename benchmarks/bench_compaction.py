"""How fast a log is compacted, against reading, CRC-checking and writing the same bytes; and its memory.

SEGSTORE_COMPACT_MIB is the size of the log, 1024 in the issue's figure: values of 200 bytes, nine tenths of
them superseded, uncompressed. Both sides end with an fdatasync of what they wrote.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from harness import Results, by_turns, keep_ratios

import segstore
from segstore.config import StoreConfig
from segstore.storage import cleaner
from segstore.storage.segment.batch_scan import walk

MIB = int(os.environ.get("SEGSTORE_COMPACT_MIB", "128"))
VALUE_BYTES = 200
RECORDS = (MIB << 20) // (VALUE_BYTES + 23)
AT_A_TIME = 20_000
CHUNK = 1 << 20
ROUNDS = int(os.environ.get("SEGSTORE_COMPACT_ROUNDS", "7"))
CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": 64 << 20,
    "file.delete.delay.ms": 0,
    "min.cleanable.dirty.ratio": 1,  # nothing is compacted but when it is measured
}


def fill(store: segstore.Store) -> segstore.PartitionLog:
    """Topic "t" anew: RECORDS records of a tenth as many keys, all in sealed segments."""
    if "t" in store.topics():
        store.delete_topic("t")
    store.create_topic("t", config=CONFIG)
    log = store.partition("t")
    rng = np.random.default_rng(1)
    keys = rng.integers(0, RECORDS // 10, RECORDS)
    values = np.frombuffer(rng.bytes(AT_A_TIME * VALUE_BYTES), np.uint8).reshape(-1, VALUE_BYTES)
    for at in range(0, RECORDS, AT_A_TIME):
        some = keys[at : at + AT_A_TIME]
        log.append_batch(values[: len(some)], keys=np.char.zfill(some.astype("S14"), 14))
    with log.partition_for_write().token:
        log.partition_for_write().writer.roll_apart()
        log.partition_for_write().visible.show()
    log.flush()
    return log


def compact(store: segstore.Store, log: segstore.PartitionLog) -> cleaner.CleanResult:
    return cleaner.clean(log.partition_for_write(), StoreConfig(), store.context.clock(), cleaner.Throttler())


def copied(log: segstore.PartitionLog, path: Path) -> int:
    """Read all batches, check every CRC, write them: bytes."""
    files, at = segstore.files.Files(), 0
    with files.open(path, write=True, create=True) as out:
        files.truncate(out, 0)
        for segment in log.partition_for_write().view.segments:
            for step in walk(files, segment.handle, 0, segment.size, check_crcs=True, chunk=CHUNK):
                whole = step.stop.position - step.position
                at += files.pwrite(out, memoryview(step.data)[:whole], at)
        files.sync(out)
    return at


@pytest.fixture
def filled(store: segstore.Store) -> tuple[segstore.Store, Callable[[], segstore.PartitionLog]]:
    """The store, and the log: filled anew after each compaction."""
    held: list[segstore.PartitionLog] = []

    def log() -> segstore.PartitionLog:
        if not held or held[0].size < (MIB << 20) // 2:
            held[:] = [fill(store)]
        return held[0]

    return store, log


def test_compaction(
    benchmark: Any, results: Results, filled: tuple[segstore.Store, Any], tmp_path: Path
) -> None:
    store, log = filled
    done: list[cleaner.CleanResult] = []

    def ours() -> None:
        done.append(compact(store, log()))

    ratio, theirs, best = by_turns(
        benchmark, ours, lambda: copied(log(), tmp_path / "copy"), prepare=log, rounds=3
    )
    size = done[-1].bytes_before
    assert done[-1].records_after < done[-1].records_before / 9
    note = (
        f"{size >> 20} MiB; {size / best / 1e6:.0f} of {size / theirs / 1e6:.0f} MB/s read, checked, written"
    )
    results.add(benchmark, "compaction", ratio, 0.25, "x", True, note)


CHILD = """
import sys, segstore
from segstore.config import StoreConfig
from segstore.storage import cleaner

def kib(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))

with segstore.open(sys.argv[1]) as store:
    partition = store.partition("t").partition_for_write()
    open("/proc/self/clear_refs", "w").write("5")  # forget the peak so far
    before = kib("VmRSS:")
    done = cleaner.clean(partition, StoreConfig(), store.context.clock(), cleaner.Throttler())
    print(kib("VmHWM:") - before, done.bytes_before)
"""


def test_memory(benchmark: Any, results: Results, tmp_path: Path) -> None:
    """In a process of its own: its peak, less what an open store takes."""
    with segstore.open(tmp_path / "store") as store:
        fill(store)
    command = [sys.executable, "-c", CHILD, str(tmp_path / "store")]
    told = benchmark.pedantic(lambda: subprocess.check_output(command, text=True), rounds=1)
    used, size = map(int, told.split())
    dedupe = StoreConfig().log_cleaner_dedupe_buffer_size >> 20
    note = f"{size >> 20} MiB; the dedupe buffer has {dedupe} MiB"
    results.add(benchmark, "compaction, memory", used / 1024, dedupe + 64, "MiB", False, note)


def test_appends_go_on(benchmark: Any, results: Results, filled: tuple[segstore.Store, Any]) -> None:
    """The 99th percentile of single appends to the log that is compacted, against that without compaction."""
    store, log = filled
    found: list[float] = []
    before: list[float] = []

    def appends(until: Callable[[int], bool]) -> float:
        it, took = log(), []
        while not until(len(took)):
            began = time.perf_counter()
            it.append(b"x" * VALUE_BYTES, key=b"k")
            took.append(time.perf_counter() - began)
        return float(np.percentile(took, 99))

    def during() -> float:
        """By the store's own sweeper thread, which has a priority of its own."""
        filled, done = log(), threading.Event()

        def run() -> None:
            try:
                compact(store, filled)
            finally:
                done.set()

        store.writer().sweeper._scheduler.soon(run)
        return appends(lambda n: n > 100 and done.is_set())

    by_turns(
        benchmark, lambda: found.append(during()), lambda: before.append(appends(lambda n: n == 20_000)),
        prepare=log, rounds=ROUNDS,
    )  # fmt: skip
    ratio = median(one / other for one, other in zip(found[1:], before[1:], strict=True))
    keep_ratios(benchmark, [other / one for one, other in zip(found[1:], before[1:], strict=True)])
    note = f"{median(found) * 1e6:.0f} to {median(before) * 1e6:.0f} us, medians of {ROUNDS} rounds"
    results.add(benchmark, "append p99 during compaction", ratio, 2, "x", False, note)
