"""The ways of reading that `caches` compares, in a process just started. On disk: reads one file.
Threads: one.
"""

from __future__ import annotations

import mmap
import os
import random
import time
from collections import OrderedDict
from collections.abc import Callable

from segstore.bench.studies.child import memory
from segstore.bench.studies.common import SEED, percentile

BLOCK = 4096
SKEW = 3.0  # a place is drawn as u ** SKEW of the file: its first tenth gets 46 % of the reads
PREAD, MAPPED, OWN_QUARTER, OWN_ALL = "pread", "mmap", "own cache ¼", "own cache all"
WAYS = (PREAD, MAPPED, OWN_QUARTER, OWN_ALL)
Reader = Callable[[int], bytes]


class OwnCache:
    """The blocks that were read last, `capacity` of them, in the process."""

    def __init__(self, fd: int, capacity: int) -> None:
        self._fd, self._capacity = fd, capacity
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self.hits = 0

    def read(self, at: int) -> bytes:
        """The block at `at`."""
        blocks = self._blocks
        block = blocks.get(at)
        if block is not None:
            self.hits += 1
            blocks.move_to_end(at)
            return block
        block = blocks[at] = os.pread(self._fd, BLOCK, at)
        if len(blocks) > self._capacity:
            blocks.popitem(last=False)
        return block


def places(size: int, reads: int, turn: int) -> list[int]:
    """Where a pass reads: skewed, spread over the file so that neighbours aren't both wanted."""
    draw, count = random.Random(SEED + turn).random, size // BLOCK
    order = list(range(count))
    random.Random(SEED).shuffle(order)
    return [order[int(draw() ** SKEW * count)] * BLOCK for _ in range(reads)]


def passes(path: str, way: str, reads: int) -> dict[str, float]:
    """Two passes over a file: reads/s, percentiles (µs) and hits (%) of each, memory (MiB) behind both."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no readahead: what is read is what was asked for
    size = os.fstat(fd).st_size
    where = [places(size, reads, turn) for turn in range(2)]
    before, told = memory(), {}
    mapping = mmap.mmap(fd, size, prot=mmap.PROT_READ)
    mapping.madvise(mmap.MADV_RANDOM)
    own = OwnCache(fd, size // BLOCK // (4 if way == OWN_QUARTER else 1))
    readers: dict[str, Reader] = {
        PREAD: lambda at: os.pread(fd, BLOCK, at),
        MAPPED: lambda at: mapping[at : at + BLOCK],
    }
    for name, chosen in zip(("1st", "2nd"), where, strict=True):
        own.hits = 0
        told.update(_pass(readers.get(way, own.read), chosen, name))
        told[f"hits {name} %"] = 100 * own.hits / reads
    after = memory()
    told["own MiB"] = max(after["own"] - before["own"], 0) / (1 << 20)
    told["mapped MiB"] = max(after["files"] - before["files"], 0) / (1 << 20)
    mapping.close()
    os.close(fd)
    return told


def _pass(read: Reader, chosen: list[int], name: str) -> dict[str, float]:
    clock, took = time.perf_counter, []
    for at in chosen:
        began = clock()
        read(at)
        took.append(clock() - began)
    return {
        f"{name} reads/s": len(took) / sum(took),
        f"{name} p50 µs": percentile(took, 0.5) * 1e6,
        f"{name} p99 µs": percentile(took, 0.99) * 1e6,
    }
