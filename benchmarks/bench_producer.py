"""How fast a producer sends, against one os.write a record.

Page cache, no sync on either side; a fresh topic and a fresh file for every round. A round of sending ends
with flush: every record is in the log and its future done.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from harness import Results, as_list, by_turns, new_log, random_values

import segstore

RECORDS = 300_000


@pytest.mark.parametrize("kept", [False, True], ids=["dropped", "kept"])
def test_send(benchmark: Any, results: Results, store: segstore.Store, tmp_path: Path, kept: bool) -> None:
    values, path = as_list(random_values(RECORDS)), tmp_path / "raw"

    def prepare() -> None:
        path.unlink(missing_ok=True)
        new_log(store, "t")

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
