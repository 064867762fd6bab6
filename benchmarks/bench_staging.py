"""How long the adoption of staged batches takes, against the time that staging them took.

STAGED_MB (1024) of 100-byte values, in batches as a stager makes them, for one partition of a new topic; both
sides make durable what they write. The store is open in this process. "moved": a record was appended since
the stager looked, so that every batch gets other offsets than it had guessed.
"""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from harness import VALUE_BYTES, Results, random_values

import segstore
from segstore.storage.staging import Stager, seal

MB = int(os.environ.get("STAGED_MB", "1024"))
PER_CALL = 100_000
COPIED = {"inbox.segment.bytes": 2**31 - 1}
CASES = {"as segments": ({}, 0, 10), "as segments, moved": ({}, 1, 40), "copied": (COPIED, 0, 250)}


@pytest.mark.parametrize("case", CASES)
def test_adoption(benchmark: Any, results: Results, tmp_path: Any, case: str) -> None:
    values, calls = random_values(PER_CALL), MB * 1_000_000 // (PER_CALL * VALUE_BYTES)
    config, moved, target = CASES[case]
    rounds: list[tuple[float, float]] = []

    def run() -> None:
        path = tmp_path / f"store-{len(rounds)}"
        with segstore.open(path, config=config) as store:
            store.create_topic("t")
            began = time.perf_counter()
            with Stager(path) as stager:
                for _ in range(calls):
                    stager.append_batch("t", 0, values)
                message = stager.finish()
            took = time.perf_counter() - began
            for _ in range(moved):
                store.partition("t").append(b"between")
            began = time.perf_counter()
            seal(path, "one", [message], timeout=600)
            rounds.append((took, time.perf_counter() - began))
            assert store.partition("t").end_offset == calls * PER_CALL + moved
            store.delete_topic("t")

    benchmark.pedantic(run, rounds=3, warmup_rounds=0)
    staging, adopting = min(rounds, key=lambda pair: pair[1] / pair[0])
    note = f"of the time of staging {MB} MB: {adopting:.2f} of {staging:.2f} s"
    results.add(benchmark, f"adoption, {case}", 100 * adopting / staging, target, "%", False, note)
