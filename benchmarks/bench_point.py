"""How long the read of one record at a random offset takes: warm, uncompressed, its batch's CRC checked."""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from harness import SEED, Results, by_turns, new_log, random_values, stamps

import segstore

RECORDS = 500_000
READS, ROUNDS = 10_000, 5


@pytest.mark.parametrize(("batch_bytes", "target"), [(4096, 15), (65536, 40)], ids=["4KiB", "64KiB"])
def test_read_one(
    benchmark: Any, results: Results, store: segstore.Store, batch_bytes: int, target: float
) -> None:
    values, times, random = random_values(RECORDS), stamps(RECORDS), Random(SEED)
    log = new_log(store, "t")
    log.append_batch(values, timestamps=times, batch_bytes=batch_bytes)

    offsets = [random.randrange(RECORDS) for _ in range(READS)]
    took: list[int] = []

    def read_each() -> None:
        clock = time.perf_counter_ns
        for offset in offsets:
            began = clock()
            log.read(offset, 1)[0]
            took.append(clock() - began)

    (path,) = Path(store.path, "t-0").glob("*.log")

    def bare() -> None:
        """As many bytes, from as many places, with nothing found or checked."""
        room = path.stat().st_size // RECORDS
        with open(path, "rb", buffering=0) as file:
            for offset in offsets:
                os.pread(file.fileno(), batch_bytes, offset * room)

    by_turns(benchmark, read_each, bare, rounds=ROUNDS)
    record = log.read(offsets[-1], 1)[0]
    at = offsets[-1]
    assert record == (at, int(times[at]), None, values[at].tobytes(), [])
    p50, p90, p99 = (np.percentile(took[READS:], of) / 1e3 for of in (50, 90, 99))
    name, note = f"read one, batches of {batch_bytes // 1024} KiB", f"p50; p90 {p90:.1f}, p99 {p99:.1f}"
    results.add(benchmark, name, p50, target, "us", False, note)
