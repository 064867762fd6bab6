"""The plan of the measurement: sizes, caches, sinks, methods, number and length of runs; and the logs for it.

On disk: `write` makes a store. Threads: any; one thread calls `write`.

A cell is one way to send `size` bytes at a time to one sink. "log" is a transfer as by
`PartitionLog.transfer`, with the look-up of the batches. "bare" makes only the method's system calls, for
bytes at positions that need no look-up. Only "log" is measured with a cold page cache, too.
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
"""A bare loop of Python's own os.sendfile, with which the engine is compared."""


class ContenderGroup(NamedTuple):
    """Contenders with the same task, which are measured by turns."""

    size: int
    cache: str
    sink: str


class Contender(NamedTuple):
    way: str
    method: str


@dataclass(frozen=True)
class MeasurementPlan:
    """The measurements to make. `seconds` is the length of a run. `stretch` is the approximate size of a log
    in bytes, and the most that a run sends.
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
    """Return a plan that takes seconds instead of minutes: enough for a trial, not for reliable figures."""
    sizes = tuple(size for size in plan.sizes if size in (KIB, 64 * KIB, MIB)) or plan.sizes[:1]
    return MeasurementPlan(sizes, plan.caches, plan.sinks, plan.methods, min(plan.runs, 2), 0.002, 2 * MIB)


# --- layout ------------------------------------------------------------------------------------

# This part writes the logs that are sent. For each size they have whole batches, and a transfer takes exactly
# `size` bytes.
#
# On disk: a store with two topics for each size of batch, one for the page cache ("warm") and one for the
# disk ("cold"); incompressible records, one a batch, synced. Threads: one.

MOST_BATCH = 16 << 10
"""Bytes of a producer's batch: the default of Kafka's batch.size. Larger transfers take several batches."""
LEAST_BATCHES = 8192
_HEADER = 61
_RECORD = 5  # attributes, timestamp delta, offset delta, no key, no headers: a byte each
_SEED = 20130101
_CHUNK = 8 << 20


class MeasuredLog(NamedTuple):
    """A log of `transfers` transfers, each of exactly `size` bytes; transfer i begins with offset i *
    `step`.
    """

    topic: str
    path: str
    size: int
    step: int
    transfers: int


def batch_bytes(size: int) -> int:
    """Return the size of a batch in bytes for transfers of `size` bytes. A transfer of up to MOST_BATCH bytes
    is one batch, a larger transfer is several batches.
    """
    return min(size, MOST_BATCH)


def write(root: str, sizes: Iterable[int], caches: Iterable[str], most: int) -> None:
    """Write a store at `root` with all logs that `stretch` returns. Each log has about `most` bytes, but at
    least two transfers.
    """
    largest, caches = max(sizes), tuple(caches)
    with open_store(root) as store:
        for batch in sorted({batch_bytes(size) for size in sizes}):
            count = min(LEAST_BATCHES, max(most, 2 * largest if batch == MOST_BATCH else 0) // batch)
            for cache in caches:
                _write_topic(store, _topic(batch, cache), batch, max(count, 2))


def stretch(root: str, size: int, cache: str) -> MeasuredLog:
    """Return the log of the store at `root` for transfers of `size` bytes."""
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
    """Return the length of the value whose record, alone in a batch, makes a batch of `batch` bytes."""
    for lengths in range(2, 10):
        value = batch - _HEADER - _RECORD - lengths
        if _varint_bytes(value) + _varint_bytes(_RECORD + _varint_bytes(value) + value) == lengths:
            return value
    raise AssertionError(f"no record makes a batch of {batch} bytes")


def _varint_bytes(value: int) -> int:
    """Return the number of bytes of a length as a zigzag varint: 7 bits a byte."""
    return max(1, -(-(2 * value).bit_length() // 7))
