"""The plan of the measurement: sizes, caches, sinks, methods, number of runs and their length. Also writes
the logs that are sent. On disk: `write` makes a store. Threads: any; one thread calls `write`.

A cell is one way to send `size` bytes at a time to one sink. The way "log" is a transfer as
`PartitionLog.transfer` makes it, with the look-up of the batches. The way "bare" makes only the method's
system calls, for bytes whose positions are known. "log" is measured with a warm and with a cold page cache,
"bare" only with a warm page cache.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from segstore.bench.choices import CACHES, MIB, SINKS, TRANSFER_RUNS
from segstore.bench.choices import KIB as KIB
from segstore.bench.choices import SIZES as SIZES
from segstore.bench.zero_copy.contenders import ALL_METHODS
from segstore.coordinator.open import open as open_store
from segstore.storage.store.store import Store

SIZE_NAMES = {size: name for name, size in SIZES.items()}
WAYS = LOG, BARE = ("log", "bare")
OS_SENDFILE = "os.sendfile"
"""The name of a contender: a bare loop of Python's os.sendfile, with which `PartitionLog.transfer` is
compared.
"""


class ContenderGroup(NamedTuple):
    """The key of a group of contenders that have the same task. The contenders of a group are measured in
    turns.
    """

    size: int
    cache: str
    sink: str


class Contender(NamedTuple):
    way: str
    method: str


@dataclass(frozen=True)
class MeasurementPlan:
    """The measurements to make. `seconds` is the length of a run. `stretch` is the approximate size of a log
    in bytes. A run sends each byte of a log at most once.
    """

    sizes: tuple[int, ...] = tuple(SIZES.values())
    caches: tuple[str, ...] = CACHES
    sinks: tuple[str, ...] = SINKS
    methods: tuple[str, ...] = tuple(ALL_METHODS)
    runs: int = TRANSFER_RUNS
    seconds: float = 0.04
    stretch: int = 64 * MIB

    def groups(self) -> list[ContenderGroup]:
        """Return the groups in the order in which each pass measures them."""
        order = product(self.sinks, self.caches, self.sizes)
        return [ContenderGroup(size, cache, sink) for sink, cache, size in order]


def quick(plan: MeasurementPlan) -> MeasurementPlan:
    """Return a smaller plan, whose measurement takes seconds instead of minutes. It shows that everything
    works, but its figures are not reliable.
    """
    sizes = tuple(size for size in plan.sizes if size in (KIB, 64 * KIB, MIB)) or plan.sizes[:1]
    return MeasurementPlan(sizes, plan.caches, plan.sinks, plan.methods, min(plan.runs, 2), 0.002, 2 * MIB)


# --- layout ------------------------------------------------------------------------------------

# The code below writes the logs that are sent. A transfer of `size` bytes is exactly one batch or several
# whole batches.
#
# On disk: a store with two topics for each batch size, one that is read from the page cache ("warm") and one
# that is read from the disk ("cold"). The records can't be compressed. Each batch has one record, and the
# logs are synced. Threads: one.

MOST_BATCH = 16 << 10
"""The maximum size of a batch, in bytes: the default of Kafka's batch.size. A larger transfer has several
batches.
"""
LEAST_BATCHES = 8192
_HEADER = 61
_RECORD = 5  # one byte each: attributes, timestamp delta, offset delta, no key, no headers
_SEED = 20130101
_CHUNK = 8 << 20


class MeasuredLog(NamedTuple):
    """A log that is sent in `transfers` transfers, each of exactly `size` bytes. Transfer i begins with
    offset i * `step`.
    """

    topic: str
    path: str
    size: int
    step: int
    transfers: int


def batch_bytes(size: int) -> int:
    """Return the size of the batches in bytes, for transfers of `size` bytes. A transfer of at most
    MOST_BATCH bytes is one batch; a larger transfer is several batches.
    """
    return min(size, MOST_BATCH)


def write(root: str, sizes: Iterable[int], caches: Iterable[str], most: int) -> None:
    """Write a store at `root` with all logs that `stretch` will return. Each log has about `most` bytes, but
    is at least long enough for two transfers.
    """
    largest, caches = max(sizes), tuple(caches)
    with open_store(root) as store:
        for batch in sorted({batch_bytes(size) for size in sizes}):
            count = min(LEAST_BATCHES, max(most, 2 * largest if batch == MOST_BATCH else 0) // batch)
            for cache in caches:
                _write_topic(store, _topic(batch, cache), batch, max(count, 2))


def stretch(root: str, size: int, cache: str) -> MeasuredLog:
    """Return the log, in the store at `root`, that is sent in transfers of `size` bytes with the page cache
    `cache` ("warm" or "cold").
    """
    batch = batch_bytes(size)
    topic = _topic(batch, cache)
    (path,) = glob.glob(os.path.join(glob.escape(root), f"{topic}-0", "*.log"))
    return MeasuredLog(topic, path, size, size // batch, os.path.getsize(path) // size)


def _topic(batch: int, cache: str) -> str:
    return f"{cache}-{batch}"


def _write_topic(store: Store, topic: str, batch: int, count: int) -> None:
    store.create_topic(topic)
    log = store.partition(topic, 0)
    rng = np.random.default_rng(_SEED)
    width = value_bytes(batch)
    for at in range(0, count, most := max(1, _CHUNK // batch)):
        rows = min(most, count - at)
        values = np.frombuffer(rng.bytes(rows * width), np.uint8).reshape(rows, width)
        log.append_batch(values, batch_bytes=1, compression="none", timestamps=np.zeros(rows, np.int64))
    log.flush()


def value_bytes(batch: int) -> int:
    """Return the length that a value must have so that a batch with only its record has `batch` bytes."""
    for lengths in range(2, 10):
        value = batch - _HEADER - _RECORD - lengths
        if _varint_bytes(value) + _varint_bytes(_RECORD + _varint_bytes(value) + value) == lengths:
            return value
    raise AssertionError(f"no record makes a batch of {batch} bytes")


def _varint_bytes(value: int) -> int:
    """Return the number of bytes of a length that is encoded as a zigzag varint, with 7 bits in each byte."""
    return max(1, -(-(2 * value).bit_length() // 7))
