"""What deleting a segment costs, by what is in it: retention of large segments against that of small ones.

SEGSTORE_RETENTION_MIB is the size of the large ones; the small ones have 1 MiB. All are written out, and have
been read from, before. What the sweep does (choosing, the log start offset, renaming to `.deleted`, closing)
is told apart from the unlinking, which is the file system's: that frees a larger file's blocks.
"""

from __future__ import annotations

import os
import time
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from harness import Results, keep_ratios, new_log

import segstore

LARGE = int(os.environ.get("SEGSTORE_RETENTION_MIB", "64"))
SEGMENTS = 16
VALUE_BYTES = 1000
AT_A_TIME = 1000
ROUNDS = 5


class Cost(NamedTuple):
    """Seconds a segment."""

    sweep: float
    unlink: float


def delete(store: segstore.Store, mib: int) -> Cost:
    """Let SEGMENTS sealed segments of a new topic "t" go."""
    size = mib << 20
    log = new_log(store, "t", **{"segment.bytes": size, "file.delete.delay.ms": 3_600_000})
    values = np.zeros((AT_A_TIME, VALUE_BYTES), np.uint8)
    while len(log.partition_for_write().view.segments) <= SEGMENTS:
        log.append_batch(values, batch_bytes=1 << 18)
    log.flush()
    for segment in log.partition_for_write().view.segments:
        assert len(log.read(segment.base_offset + 1, 1 << 16))
    store.alter_topic("t", {"retention.bytes": 1})
    began = time.perf_counter()
    (swept,) = store.sweep()
    renamed = time.perf_counter()
    store.context.graveyard.clear(closing=True)
    unlinked = time.perf_counter()
    assert swept.deleted_segments >= SEGMENTS
    assert swept.deleted_bytes >= SEGMENTS * (size - (1 << 19))
    return Cost((renamed - began) / swept.deleted_segments, (unlinked - renamed) / swept.deleted_segments)


def test_deleting_a_segment(benchmark: Any, results: Results, store: segstore.Store) -> None:
    pairs: list[tuple[Cost, Cost]] = []
    benchmark.pedantic(
        lambda: pairs.append((delete(store, 1), delete(store, LARGE))), rounds=ROUNDS, warmup_rounds=1
    )
    del pairs[0]
    small, large = (
        Cost(*(median(one) for one in zip(*side, strict=True))) for side in zip(*pairs, strict=True)
    )
    ratio = median(large.sweep / small.sweep for small, large in pairs)
    keep_ratios(benchmark, [small.sweep / large.sweep for small, large in pairs])
    unlinking = median(large.unlink / small.unlink for small, large in pairs)
    note = (
        f"{LARGE} MiB to 1 MiB: {large.sweep * 1e6:.0f} to {small.sweep * 1e6:.0f} us each; the file system's"
        f" unlink {unlinking:.1f}x, {large.unlink * 1e6:.0f} to {small.unlink * 1e6:.0f} us"
    )
    results.add(benchmark, "deleting a segment", ratio, 1.5, "x", False, note)
