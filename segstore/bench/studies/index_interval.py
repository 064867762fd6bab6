"""The study of how the interval of the sparse index affects the time of a look-up and the size of the index.

On disk: a topic for each interval, in a store in the scratch directory. Threads: one.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from segstore.bench.figures import Figure
from segstore.bench.plots import label, lines, panels, ticks
from segstore.bench.results import ClaimFinding, Progress, Results
from segstore.bench.studies.common import (
    FIRST_MS,
    SEED,
    concluded,
    measure,
    new_log,
    percentile,
    records_of,
    scratch,
)
from segstore.bench.studies.words import answer, contest, factor, size_text
from segstore.coordinator.open import open as open_store
from segstore.files import Path
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture


# --- lookups -----------------------------------------------------------------------------------

# The functions below make the logs, and look up records in the logs.

PER_BATCH, VALUE = 8, 100  # records in a batch, bytes in a value
RECORD_OVERHEAD = 8  # size of a record without its value, approximate, in bytes
INDEXES = (".index", ".timeindex")


def topic(interval: int) -> str:
    """Return the name of the topic whose index has this interval."""
    return f"every-{interval}"


def filled(store: Store, interval: int, records: int) -> None:
    """Make the topic whose index has this interval, and append small batches. The records' timestamps are a
    millisecond apart.
    """
    log = new_log(store, topic(interval), index_interval_bytes=interval, segment_index_bytes=10 << 20)
    values = records_of(1000, VALUE)
    for first in range(0, records, len(values)):
        times = [FIRST_MS + first + i for i in range(len(values))]
        log.append_batch(values, timestamps=times, batch_bytes=PER_BATCH * (VALUE + RECORD_OVERHEAD))


def sizes(directory: str) -> Mapping[str, float]:
    """Return the total size of a partition's index files, in KiB and in ‰ of the log's size. The store must
    be closed.
    """
    names = os.listdir(directory)
    indexes = sum(os.path.getsize(os.path.join(directory, name)) for name in names if name.endswith(INDEXES))
    logs = sum(os.path.getsize(os.path.join(directory, name)) for name in names if name.endswith(".log"))
    return {"index KiB": indexes / 1024, "index ‰ of log": 1000 * indexes / logs}


def look_ups(log: PartitionLog, count: int, sizes: Mapping[str, float]) -> Mapping[str, float]:
    """Make `count` look-ups by offset and `count` look-ups by time. Return their figures, together with the
    figures in `sizes`.
    """
    rng, clock = random.Random(SEED), time.perf_counter
    by_offset: list[float] = []
    by_time: list[float] = []
    for _ in range(count):
        offset = rng.randrange(log.end_offset)
        began = clock()
        log.read(offset, max_bytes=1)
        ended = clock()
        log.offset_for_time(FIRST_MS + offset)
        by_offset.append(ended - began)
        by_time.append(clock() - ended)
    return {**_percentiles("offset", by_offset), **_percentiles("time", by_time), **sizes}


def _percentiles(by: str, took: Sequence[float]) -> Mapping[str, float]:
    return {f"by {by} p50 µs": percentile(took, 0.5) * 1e6, f"by {by} p99 µs": percentile(took, 0.99) * 1e6}


# --- index interval ------------------------------------------------------------

NAME = "index-interval"
QUESTION = "What does a denser index buy in look-ups, and what does it take on disk?"
ABOUT = """\
The same log of record batches of about 1 KiB (8 records of 100 bytes) is written with each
index.interval.bytes from 512 bytes, where every batch has an entry, to 1 MiB. Then single records are read
at random offsets, and looked up by random times: the index gives a position at most one interval before the
batch, and the headers of the batches between are scanned. Everything is in the page cache. A look-up costs
some microseconds of Python whatever the index does, and smaller differences can't be seen; on a cold disk a
scan would cost reads besides. Sizes are those of the files once the store is closed: 8 bytes for an entry
by offset, 12 for one by time."""

INTERVALS = (512, 4096, 16384, 65536, 262144, 1 << 20)
DEFAULT, WIDER = 4096, 65536  # bytes between two index entries: Kafka's default, and more
SHOWN = ("by offset p50 µs", "by time p50 µs", "index KiB", "index ‰ of log")
KEY = "interval bytes"


def run(directory: Path, quick: bool, runs: int, progress: Progress) -> Results:
    """Measure look-ups with each interval `runs` times, and the size of each index once. Return the results.
    Raises OSError.
    """
    records, lookups = (20_000, 50) if quick else (300_000, 600)
    with scratch(directory) as path:
        with open_store(os.path.join(path, "store")) as store:
            for interval in INTERVALS:
                progress(0, runs * len(INTERVALS), f"{NAME}: writing {size_text(interval)}")
                filled(store, interval, records)
        found = {
            interval: sizes(os.path.join(path, "store", f"{topic(interval)}-0")) for interval in INTERVALS
        }
        with open_store(os.path.join(path, "store"), mode="r") as store:
            variants = {
                (interval,): partial(look_ups, store.partition(topic(interval), 0), lookups, found[interval])
                for interval in INTERVALS
            }
            cells = measure((KEY,), variants, runs, progress, NAME)
        settings = {"runs": runs, "quick": quick, "records": records, "look-ups": lookups}
        return concluded(sys.modules[__name__], path, cells, settings)


def findings(results: Results) -> list[ClaimFinding]:
    """Return findings. Two compare the smallest interval with the largest interval and with Kafka's default.
    One compares Kafka's default with 64 KiB, and one is about the size of the index on disk.
    """
    dense, *_, sparse = results.values(KEY)

    densest = size(results, dense, "index ‰ of log")
    usual = size(results, DEFAULT, "index ‰ of log")
    return [
        ClaimFinding("A denser index makes look-ups faster.", _between(results, dense, sparse)),
        ClaimFinding(
            "An entry for every batch finds faster than Kafka's default.", _between(results, dense, DEFAULT)
        ),
        ClaimFinding("Kafka's default finds faster than 64 KiB.", _between(results, DEFAULT, WIDER)),
        ClaimFinding(
            "An index is small beside its log.",
            f"At Kafka's default of {size_text(DEFAULT)} the index files are {usual:.2g} ‰ of the log, at "
            f"{size_text(dense)} {densest:.2g} ‰, {factor(densest, usual)} times as much.",
        ),
    ]


def size(results: Results, interval: int, figure: str) -> float:
    """Return the median size of the index files with one interval; `figure` names the unit."""
    return results.cell(**{KEY: interval}).figures[figure].median


def _between(results: Results, first: int, second: int) -> str:
    """Return a sentence that compares two intervals, by the times of look-ups by offset and of look-ups by
    time.
    """
    texts = (f"every {size_text(first)}", f"every {size_text(second)}")
    kinds = ("by offset", "by time")
    return answer(
        [contest(results, KEY, (first, second), f"{by} p50 µs", False, {}, (by, *texts)) for by in kinds]
    )


def plot(results: Results) -> Picture:
    """Return a picture of the times of look-ups, and of the sizes of the index files, by interval."""
    intervals = results.values(KEY)

    def points(figure: str) -> dict[float, Figure]:
        return {float(cell.keys[KEY]): cell.figures[figure] for cell in results.cells}

    with panels("The sparse index: its interval against look-ups and size", 2) as (left, right):
        label(left, "index.interval.bytes", "µs a look-up, median", xlog=True, ylog=True)
        lines(left, {by: points(f"{by} p50 µs") for by in ("by offset", "by time")})
        label(right, "index.interval.bytes", "KiB of index files", xlog=True, ylog=True)
        lines(right, {"offset and time index": points("index KiB")})
        for axes in (left, right):
            ticks(axes, intervals, [size_text(interval) for interval in intervals])
        return left.figure  # type: ignore[return-value]
