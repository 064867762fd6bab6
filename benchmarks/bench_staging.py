"""How long the adoption of staged batches takes, against the time that staging them took; and how long
appends wait meanwhile.

STAGED_MB (1024) of 100-byte values for four partitions of a new topic, in batches as a stager makes them, by
as many stagers as it takes, one after the other; both sides make durable what they write. The store is open
in this process. "moved": a record was appended since the stagers looked, so that every batch gets other
offsets than they had guessed. Files below `inbox.segment.bytes` are copied: those of 1 MB show what that
costs.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from harness import VALUE_BYTES, Results, keep_ratios, random_values

import segstore
from segstore.storage.staging import Staged, Stager, seal

MB = int(os.environ.get("STAGED_MB", "1024"))
PER_CALL, PARTITIONS, PAUSE = 100_000, 4, 0.001
CASES = {
    "4 files": (4, False, 10),
    "4 files, moved": (4, True, 10),
    "64 files": (64, False, 10),
    "64 files, moved": (64, True, 10),
    "1,000 files": (1000, False, 15),
}
"""How many files; whether offsets were guessed wrong; and the percentage that is aimed at."""


def stage(path: Path, files: int) -> list[Staged]:
    """A message of each stager, which has a file for each partition."""
    each = MB * 1_000_000 // files // VALUE_BYTES
    values, messages = random_values(min(each, PER_CALL)), []
    for _ in range(files // PARTITIONS):
        with Stager(path) as stager:
            for partition in range(PARTITIONS):
                for begin in range(0, each, len(values)):
                    stager.append_batch("t", partition, values[: each - begin])
            messages.append(stager.finish())
    return messages


@pytest.mark.parametrize("case", CASES)
def test_adoption(benchmark: Any, results: Results, tmp_path: Path, case: str) -> None:
    files, moved, target = CASES[case]
    rounds: list[tuple[float, float]] = []

    def run() -> None:
        path = tmp_path / "store"
        with segstore.open(path) as store:
            store.create_topic("t", PARTITIONS)
            began = time.perf_counter()
            messages = stage(path, files)
            took = time.perf_counter() - began
            for partition in range(PARTITIONS if moved else 0):
                store.partition("t", partition).append(b"between")
            began = time.perf_counter()
            done = seal(path, "one", messages, timeout=600)
            rounds.append((took, time.perf_counter() - began))
            assert sum(end - first for first, end in done.offsets.values()) == sum(
                m.records for m in messages
            )
        shutil.rmtree(path)

    benchmark.pedantic(run, rounds=3, warmup_rounds=0)
    keep_ratios(benchmark, [staged / adopted for staged, adopted in rounds])
    staging, adopting = sorted(rounds, key=lambda pair: pair[1] / pair[0])[1]
    note = f"of the time of staging {MB} MB: {adopting:.3f} of {staging:.2f} s (median of 3)"
    results.add(benchmark, f"adoption, {case}", 100 * adopting / staging, target, "%", False, note)


def appending(log: segstore.PartitionLog, stop: Callable[[], bool]) -> tuple[threading.Thread, list[float]]:
    """A thread that appends a record every ms, and how long each took, ms."""
    took: list[float] = []

    def run() -> None:
        while not stop():
            began = time.perf_counter()
            log.append(b"x" * VALUE_BYTES)
            took.append(1000 * (time.perf_counter() - began))
            time.sleep(PAUSE)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, took


def test_appends_meanwhile(benchmark: Any, results: Results, tmp_path: Path) -> None:
    """Of those to another partition the 99th percentile during an adoption is compared with that before."""
    p99: list[tuple[float, float]] = []
    longest: list[float] = []

    def run() -> None:
        path, over = tmp_path / "store", threading.Event()
        with segstore.open(path) as store:
            store.create_topic("t", PARTITIONS)
            store.create_topic("other")
            messages = stage(path, 64)
            other, others = appending(store.partition("other"), over.is_set)
            same, sames = appending(store.partition("t"), over.is_set)
            time.sleep(1)
            before = len(others), len(sames)
            seal(path, "one", messages, timeout=600)
            over.set()
            for thread in (other, same):
                thread.join()
        shutil.rmtree(path)
        quiet, busy = others[: before[0]], others[before[0] :]
        p99.append((float(np.percentile(quiet, 99)), float(np.percentile(busy, 99))))
        longest.append(max(sames[before[1] :]))

    benchmark.pedantic(run, rounds=3, warmup_rounds=0)
    keep_ratios(benchmark, [before / during for before, during in p99])
    quiet, busy = sorted(p99, key=lambda pair: pair[1] / pair[0])[1]
    note = f"of before: {busy:.2f} ms, before {quiet:.2f} ms"
    results.add(benchmark, "p99 of appends elsewhere", busy / quiet, 3, "times", False, note)
    note = f"of an append to a partition that {MB} MB are adopted to, others appending: one waits so long"
    results.add(benchmark, "longest append there", median(longest), 250, "ms", False, note)
