"""What every study shares: distinct records, the baselines' LMDB, ratios that one run measures by turns.

On disk: whatever a study makes, under pytest's temporary directory. Threads: one study at a time.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import lmdb
import numpy as np
from numpy.typing import NDArray

import segstore

VALUE_BYTES = 100
SEED = 20130101
FIRST_MS = 1_356_998_400_000
READ_BYTES = 1 << 20
PER_TRANSACTION = 1_000
MAP_BYTES = 1 << 32
STAMP = struct.Struct(">q")


@dataclass(frozen=True)
class Result:
    """One line of the table; `least`: whether `target` is the least or the most that meets it."""

    name: str
    figure: float
    target: float
    unit: str
    least: bool
    note: str

    @property
    def met(self) -> bool:
        return self.figure >= self.target if self.least else self.figure <= self.target


class Results(list[Result]):
    """What the run has measured."""

    def add(
        self, benchmark: Any, name: str, figure: float, target: float, unit: str, least: bool, note: str
    ) -> None:
        result = Result(name, figure, target, unit, least, note)
        self.append(result)
        benchmark.extra_info.update(
            name=name, figure=figure, target=target, unit=unit, least=least, met=result.met, note=note
        )


def by_turns(
    benchmark: Any,
    ours: Callable[[], Any],
    baseline: Callable[[], Any],
    prepare: Callable[[], Any] = lambda: None,
    rounds: int = 9,
) -> tuple[float, float, float]:
    """Run the baseline, then ours, `rounds` times: (median of baseline / ours, best seconds of each).

    `prepare` comes before each and is not timed. A round's two lie next to each other in time, so that
    whatever else the machine does bears on both.
    """
    theirs: list[float] = []

    def setup() -> None:
        prepare()
        began = time.perf_counter()
        baseline()
        theirs.append(time.perf_counter() - began)
        prepare()

    benchmark.pedantic(ours, setup=setup, rounds=rounds, warmup_rounds=1)
    theirs = theirs[1:]
    mine = list(benchmark.stats.stats.data)
    ratios = [b / o for b, o in zip(theirs, mine, strict=True)]
    benchmark.extra_info["baseline_seconds"] = theirs
    keep_ratios(benchmark, ratios)
    return median(ratios), min(theirs), min(mine)


def keep_ratios(benchmark: Any, ratios: Sequence[float]) -> None:
    """What `baseline` compares: one for each round, of a reference to ours, so that more is better."""
    benchmark.extra_info["ratios"] = list(ratios)


def best_of(rounds: int, run: Callable[[], Any]) -> float:
    """Seconds of the quickest."""
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        run()
        took.append(time.perf_counter() - began)
    return min(took)


# --- data ------------------------------------------------------------------------------------


def random_values(n: int) -> NDArray[np.uint8]:
    """uint8 of shape (n, VALUE_BYTES): no two rows are alike."""
    rng = np.random.default_rng(SEED)
    return np.frombuffer(rng.bytes(n * VALUE_BYTES), np.uint8).reshape(n, VALUE_BYTES)


def stamps(n: int) -> NDArray[np.int64]:
    """A millisecond apart."""
    return np.arange(FIRST_MS, FIRST_MS + n, dtype=np.int64)


def as_list(values: NDArray[np.uint8]) -> list[bytes]:
    """A bytes object for each row."""
    flat, width = values.tobytes(), values.shape[1]
    return [flat[at : at + width] for at in range(0, len(flat), width)]


# --- logs ------------------------------------------------------------------------------------


def new_log(store: segstore.Store, name: str, **config: Any) -> segstore.PartitionLog:
    """An empty topic of one partition."""
    if name in store.topics():
        store.delete_topic(name)
    store.create_topic(name, config=config or None)
    return store.partition(name, 0)


def log_bytes(store: segstore.Store, topic: str) -> bytes:
    """What lies in the first segment of partition 0."""
    (path,) = Path(store.path, f"{topic}-0").glob("*.log")
    return path.read_bytes()


def reads(log: segstore.PartitionLog, max_bytes: int = READ_BYTES) -> Iterator[segstore.Records]:
    """The whole log, read by read; every CRC checked."""
    at, end = log.start_offset, log.end_offset
    while at < end:
        records = log.read(at, max_bytes)
        yield records
        at = records.next_offset


# --- LMDB ------------------------------------------------------------------------------------


def lmdb_open(path: Path, *, sync: bool = False) -> lmdb.Environment:
    """Used by one thread, no writemap. `sync` is LMDB's default; without it, it is at its best."""
    return lmdb.open(
        str(path), map_size=MAP_BYTES, sync=sync, metasync=sync, writemap=False, readahead=True, lock=False
    )


def lmdb_append(env: lmdb.Environment, values: list[bytes]) -> None:
    """Keys are 8-byte big-endian counts, appended in order, PER_TRANSACTION to a transaction; as a log's
    record has one, each value has a timestamp before it, packed once for a transaction."""
    for at in range(0, len(values), PER_TRANSACTION):
        stamp = STAMP.pack(FIRST_MS + at)
        with env.begin(write=True) as transaction:
            for i, value in enumerate(values[at : at + PER_TRANSACTION], at):
                transaction.put(i.to_bytes(8, "big"), stamp + value, append=True)


def lmdb_scan(env: lmdb.Environment) -> tuple[int, int]:
    """All timestamps and values by a cursor: (sum of timestamps, bytes of values)."""
    times = size = 0
    stamp = STAMP.unpack_from
    with env.begin() as transaction:
        for _, value in transaction.cursor():
            times += stamp(value)[0]
            size += len(value) - STAMP.size
    return times, size


def lmdb_bare_scan(env: lmdb.Environment) -> int:
    """A cursor over all that looks at no timestamp: the bytes of values and timestamps."""
    size = 0
    with env.begin() as transaction:
        for _, value in transaction.cursor():
            size += len(value)
    return size
