"""The logs that `index_interval` makes, and its look-ups.

On disk: a topic for each interval. Threads: one.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence

from segstore.bench.studies.common import FIRST_MS, SEED, new_log, percentile, records_of
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

PER_BATCH, VALUE = 8, 100  # records, bytes
RECORD_OVERHEAD = 8  # bytes about, beside the value
INDEXES = (".index", ".timeindex")


def topic(interval: int) -> str:
    """Its name."""
    return f"every-{interval}"


def filled(store: Store, interval: int, records: int) -> None:
    """Make its log: small batches, a millisecond from record to record."""
    log = new_log(store, topic(interval), index_interval_bytes=interval, segment_index_bytes=10 << 20)
    values = records_of(1000, VALUE)
    for first in range(0, records, len(values)):
        times = [FIRST_MS + first + i for i in range(len(values))]
        log.append_batch(values, timestamps=times, batch_bytes=PER_BATCH * (VALUE + RECORD_OVERHEAD))


def sizes(directory: str) -> Mapping[str, float]:
    """Of the index files of a partition, once its store is closed."""
    names = os.listdir(directory)
    indexes = sum(os.path.getsize(os.path.join(directory, name)) for name in names if name.endswith(INDEXES))
    logs = sum(os.path.getsize(os.path.join(directory, name)) for name in names if name.endswith(".log"))
    return {"index KiB": indexes / 1024, "index ‰ of log": 1000 * indexes / logs}


def look_ups(log: PartitionLog, count: int, sizes: Mapping[str, float]) -> Mapping[str, float]:
    """`count` of each kind."""
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
