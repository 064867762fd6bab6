"""How fast records are read: into columns, to Arrow and one by one, against an LMDB cursor scan of the same.

Every CRC is checked; every reader, LMDB's too, touches all timestamps and the length of each value, and the
columns' one a byte of each. The notes tell of a bare scan, which leaves timestamps alone, as well. Messages
of magic 1, as brokers wrote them before 0.11, are read beside the same records of magic 2.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import lmdb
import numpy as np
import pyarrow.compute as pc
import pytest
from harness import (
    READ_BYTES,
    VALUE_BYTES,
    Results,
    as_list,
    best_of,
    by_turns,
    keep_ratios,
    lmdb_append,
    lmdb_bare_scan,
    lmdb_open,
    lmdb_scan,
    new_log,
    random_values,
    reads,
    stamps,
)

import segstore

RECORDS = 500_000
KIB, MIB = 1 << 10, 1 << 20
SIZES = {256 * KIB: "256 KiB", MIB: "1 MiB", 4 * MIB: "4 MiB", 8 * MIB: "8 MiB", 16 * MIB: "16 MiB"}
ROUNDS = 7
Reader = Callable[[segstore.PartitionLog], tuple[int, int]]


def columns(log: segstore.PartitionLog, max_bytes: int = READ_BYTES) -> tuple[int, int]:
    """(sum of timestamps, bytes of values)."""
    times = size = touched = 0
    for records in reads(log, max_bytes):
        values = records.values
        times += int(records.timestamps.sum())
        size += int(values.lengths.sum())
        touched += int(np.frombuffer(values.arena, np.uint8)[values.at].sum())
    assert touched
    return times, size


def arrow(log: segstore.PartitionLog) -> tuple[int, int]:
    """The same, from the tables of `to_arrow` with all their columns."""
    times = size = 0
    for records in reads(log):
        table = records.to_arrow()
        times += pc.sum(table["timestamp"]).as_py()
        size += pc.sum(pc.binary_length(table["value"])).as_py()
    return times, size


def one_by_one(log: segstore.PartitionLog) -> tuple[int, int]:
    """The same, from `Record` objects."""
    times = size = 0
    for records in reads(log):
        for record in records:
            times += record.timestamp
            size += len(record.value)
    return times, size


@pytest.fixture(scope="module")
def filled(tmp_path_factory: Any) -> Any:
    """(log, LMDB environment) with the same values."""
    values, folder = random_values(RECORDS), tmp_path_factory.mktemp("read")
    with segstore.open(folder / "store") as store, lmdb_open(Path(folder, "lmdb")) as env:
        log = new_log(store, "t")
        log.append_batch(values, timestamps=stamps(RECORDS))
        lmdb_append(env, as_list(values))
        yield log, env


@pytest.mark.parametrize(
    ("name", "reader", "target"),
    [("columns", columns, 8), ("Arrow", arrow, 3), ("one by one", one_by_one, 0.5)],
    ids=["columns", "arrow", "one-by-one"],
)
def test_read(
    benchmark: Any,
    results: Results,
    filled: tuple[segstore.PartitionLog, lmdb.Environment],
    name: str,
    reader: Reader,
    target: float,
) -> None:
    log, env = filled
    assert reader(log) == (int(stamps(RECORDS).sum()), RECORDS * VALUE_BYTES)
    assert lmdb_scan(env)[1] == RECORDS * VALUE_BYTES
    ratio, theirs, best = by_turns(benchmark, lambda: reader(log), lambda: lmdb_scan(env))
    bare = best_of(3, lambda: lmdb_bare_scan(env)) / best
    rates = f"{RECORDS / best / 1e6:.1f} to {RECORDS / theirs / 1e6:.2f} M/s"
    note = f"of an LMDB scan; {rates}; of a bare scan {bare:.2f}"
    results.add(benchmark, f"read, {name}", ratio, target, "x", True, note)


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_read_by_sizes(
    benchmark: Any,
    results: Results,
    filled: tuple[segstore.PartitionLog, lmdb.Environment],
    mode: str,
) -> None:
    """Columns by so many bytes at a time, by turns. Medians tell which size is slowest and which is best; the
    figure is the median of their ratios within a turn, because a machine's speed changes between turns.
    """
    log, wanted = filled[0], (int(stamps(RECORDS).sum()), RECORDS * VALUE_BYTES)
    took: dict[int, list[float]] = {size: [] for size in SIZES}

    def turn(log: segstore.PartitionLog) -> None:
        for size, seconds in took.items():
            began = time.perf_counter()
            seen = columns(log, size)
            seconds.append(time.perf_counter() - began)
            assert seen == wanted

    with segstore.open(log.context.root, "r") as store:
        source = log if mode == "rw" else store.partition("t")
        benchmark.pedantic(lambda: turn(source), rounds=ROUNDS, warmup_rounds=1)
    rates = {size: RECORDS / median(seconds[1:]) / 1e6 for size, seconds in took.items()}
    best = min(took, key=lambda size: median(took[size][1:]))
    slowest = max(took, key=lambda size: median(took[size][1:]))
    ratios = [b / s for b, s in zip(took[best][1:], took[slowest][1:], strict=True)]
    keep_ratios(benchmark, ratios)
    note = f"slowest to best size; {', '.join(f'{SIZES[s]} {rate:.1f}' for s, rate in rates.items())} M/s"
    results.add(benchmark, f"read, columns, by sizes, {mode!r}", median(ratios), 0.8, "x", True, note)


def messages(values: list[bytes], times: list[int]) -> bytes:
    """A log of plain messages of magic 1."""
    parts = []
    for offset, (value, at) in enumerate(zip(values, times, strict=True)):
        body = struct.pack(">bbqii", 1, 0, at, -1, len(value)) + value
        parts.append(struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body)
    return b"".join(parts)


def test_read_of_old_messages(
    benchmark: Any, results: Results, filled: tuple[segstore.PartitionLog, lmdb.Environment], tmp_path: Path
) -> None:
    """Columns of the same records as plain messages of magic 1, by turns with magic 2."""
    log, wanted = filled[0], (int(stamps(RECORDS).sum()), RECORDS * VALUE_BYTES)
    values = [value for records in reads(log) for value in records.values.tolist()]
    folder = tmp_path / "old-0"
    folder.mkdir()
    (folder / f"{0:020}.log").write_bytes(messages(values, stamps(RECORDS).tolist()))
    with segstore.open(tmp_path, "r") as store:
        old = store.partition("old")
        assert columns(old) == columns(log) == wanted
        ratio, theirs, best = by_turns(benchmark, lambda: columns(old), lambda: columns(log))
    note = f"of magic 2; {RECORDS / best / 1e6:.1f} to {RECORDS / theirs / 1e6:.1f} M/s"
    results.add(benchmark, "read, columns, magic 1", ratio, 0.3, "x", True, note)
