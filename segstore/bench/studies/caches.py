"""The study that compares the page cache with a cache in the process. On disk: one file in the scratch
directory. Threads: one in each process.
"""

from __future__ import annotations

import mmap
import os
import random
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from segstore.bench.plots import bars, label, panels
from segstore.bench.results import ClaimFinding, Progress, Results
from segstore.bench.studies.child import ask, memory
from segstore.bench.studies.common import SEED, concluded, measure, noise, percentile, scratch
from segstore.bench.studies.words import answer, contest, size_text
from segstore.bench.terminal import number_text
from segstore.bench.zero_copy.machine_state import evict, pages, resident
from segstore.files import Path

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture


# --- readers -----------------------------------------------------------------------------------

# The code below has the compared ways of reading. Each way runs in a new process.

BLOCK = 4096
SKEW = 3.0  # block number: count * u ** SKEW, u uniform in 0..1; a tenth of the blocks gets 46 % of the reads
PREAD, MAPPED, OWN_QUARTER, OWN_ALL = "pread", "mmap", "own cache ¼", "own cache all"
WAYS = (PREAD, MAPPED, OWN_QUARTER, OWN_ALL)
Reader = Callable[[int], bytes]


class OwnCache:
    """A cache in the process, which has the `capacity` blocks that were read last."""

    def __init__(self, fd: int, capacity: int) -> None:
        self._fd, self._capacity = fd, capacity
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self.hits = 0

    def read(self, at: int) -> bytes:
        """Return the block at position `at` of the file."""
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
    """Return the positions that a pass reads, in order. A few blocks are read often, and most blocks seldom.
    The frequent blocks are spread over the file, so that their neighbours are most likely read seldom.
    """
    draw, count = random.Random(SEED + turn).random, size // BLOCK
    order = list(range(count))
    random.Random(SEED).shuffle(order)
    return [order[int(draw() ** SKEW * count)] * BLOCK for _ in range(reads)]


def passes(path: str, way: str, reads: int) -> dict[str, float]:
    """Read blocks of a file in two passes, by `way`. Return the reads/s, the percentiles (µs) and the hits
    (%) of each pass, and the memory (MiB) by which the process has grown after both passes.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    # The advice switches readahead off: only the requested bytes are read.
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    size = os.fstat(fd).st_size
    where = [places(size, reads, turn) for turn in range(2)]
    before, figures = memory(), {}
    mapping = mmap.mmap(fd, size, prot=mmap.PROT_READ)
    mapping.madvise(mmap.MADV_RANDOM)
    own = OwnCache(fd, size // BLOCK // (4 if way == OWN_QUARTER else 1))
    readers: dict[str, Reader] = {
        PREAD: lambda at: os.pread(fd, BLOCK, at),
        MAPPED: lambda at: mapping[at : at + BLOCK],
    }
    for name, chosen in zip(("1st", "2nd"), where, strict=True):
        own.hits = 0
        figures.update(_pass(readers.get(way, own.read), chosen, name))
        figures[f"hits {name} %"] = 100 * own.hits / reads
    after = memory()
    figures["own MiB"] = max(after["own"] - before["own"], 0) / (1 << 20)
    figures["mapped MiB"] = max(after["files"] - before["files"], 0) / (1 << 20)
    mapping.close()
    os.close(fd)
    return figures


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


# --- caches ------------------------------------------------------------

NAME = "caches"
QUESTION = "What does a cache in the process give beyond the page cache, and what does it cost?"
ABOUT = """\
Blocks of 4 KiB are read at random positions with a skew (the most wanted tenth of the file gets most of the
reads): by one pread each; from a mapping, where each block is copied to a bytes object like the others; and
through a least-recently-used cache of blocks in the process, an OrderedDict of bytes, which has room for a
quarter of the file or for all of it, and preads the blocks that it lacks. Each run is a new process: its
first pass shows what follows a restart of the process, its second pass a warm process. Before a run the
page cache has all of the file (as when the process was restarted) or nothing of it (as when the machine
was), which mincore confirms. Memory is the growth of the process' own memory; pages of a mapped file belong
to the page cache, which all processes share. The study can't show that a cache in C would be quicker, and
that a cache of decoded records saves decoding too."""

SHOWN = ("1st reads/s", "2nd reads/s", "hits 2nd %", "own MiB")
FIRST, SECOND = "1st reads/s", "2nd reads/s"
WARM, COLD = "process", "machine"


def run(directory: Path, quick: bool, runs: int, progress: Progress) -> Results:
    """Measure each way of reading after each kind of restart, and return the results. Raises OSError, and
    StorageError if a child process fails.
    """
    size, reads = (4 << 20, 2_000) if quick else (64 << 20, 12_000)
    with scratch(directory) as path:
        name = os.path.join(path, "file")
        with open(name, "wb") as file:
            file.write(noise(size))
        kept = evict(name)
        restarts = (WARM,) if kept else (WARM, COLD)
        variants = {
            (way, restarted): partial(_read, name, way, restarted, reads)
            for restarted in restarts
            for way in WAYS
        }
        cells = measure(("way", "restarted"), variants, runs, progress, NAME)
        settings = {"runs": runs, "quick": quick, "file bytes": size, "reads a pass": reads}
        more = {"block bytes": BLOCK, "pages that can't be dropped": kept}
        return concluded(sys.modules[__name__], path, cells, {**settings, **more})


def _read(name: str, way: str, restarted: str, reads: int) -> Mapping[str, float]:
    """Let a child process read, and return its figures. They include the percentage of the file that was in
    the page cache before the child process began.
    """
    evict(name)
    if restarted == WARM:
        with open(name, "rb") as file:
            while file.read(1 << 20):
                pass
    cached = 100 * resident(name) / pages(name)
    figures: dict[str, float] = ask(
        "segstore.bench.studies.caches", "passes", path=name, way=way, reads=reads
    )
    return {"cached before %": cached, **figures}


def findings(results: Results) -> list[ClaimFinding]:
    """Return findings on the gains of the cache in the process, when it is warm and after a restart, and on
    its costs.
    """
    return [
        ClaimFinding(
            "A warm cache in the process reads faster than pread from the page cache.",
            f"{_between(results, (OWN_ALL, OWN_QUARTER), PREAD, SECOND)} The cache of a quarter of the file "
            f"is hit by {_warm(results, OWN_QUARTER, 'hits 2nd %'):.0f} % of the reads once it is warm.",
        ),
        ClaimFinding(
            "After a restart of the process its cache is cold, and the page cache is not.",
            _between(results, (PREAD,), OWN_ALL, FIRST),
        ),
        ClaimFinding(
            "A process that relies on the page cache is restarted more cheaply than the machine.",
            _restarts(results),
        ),
        ClaimFinding("A mapping reads faster than pread.", _between(results, (MAPPED,), PREAD, SECOND)),
        ClaimFinding("What the process caches lies in memory twice.", _memory(results)),
    ]


def _restarts(results: Results) -> str:
    """Return a sentence that compares, for each way, a restart of the process with a restart of the
    machine.
    """
    if COLD not in results.values("restarted"):
        kept = results.settings["pages that can't be dropped"]
        return f"Not measured: the file system kept {kept:,} pages that it was told to drop."
    ways = results.values("way")
    return answer([contest(results, "restarted", (WARM, COLD), FIRST, True, {"way": way}) for way in ways])


def _between(results: Results, ways: Sequence[str], other: str, figure: str) -> str:
    """Return a sentence that compares each of `ways` with the way `other`, by `figure` after a restart of the
    process.
    """
    where = {"restarted": WARM}
    return answer(
        [
            contest(results, "way", (way, other), figure, True, where, ("restarted process", way, other))
            for way in ways
        ]
    )


def _warm(results: Results, way: str, figure: str) -> float:
    return results.cell(way=way, restarted=WARM).figures[figure].median


def _memory(results: Results) -> str:
    """Return a sentence on the memory that each way takes in addition to the page cache."""
    sizes = [f"{way} {number_text(_warm(results, way, 'own MiB'))} MiB" for way in results.values("way")]
    mapped = number_text(_warm(results, MAPPED, "mapped MiB"))
    size = size_text(results.settings["file bytes"])
    return (
        f"Of its own the process holds, after both passes over {size}: {', '.join(sizes)}. The mapping shows "
        f"it {mapped} MiB of the page cache, which has the file once whoever reads it."
    )


def plot(results: Results) -> Picture:
    """Return a picture of the reads per second of both passes, and of the memory."""
    restarts = results.values("restarted")
    with panels("The page cache, and a cache in the process", len(restarts) + 1) as all_axes:
        for axes, restarted in zip(all_axes, restarts, strict=False):
            label(axes, f"after a restart of the {restarted}", "4 KiB reads/s")
            cells = {cell.keys["way"]: cell.figures for cell in results.where(restarted=restarted)}
            passes = (("first pass", FIRST), ("second pass", SECOND))
            bars(axes, {way: {name: f[key] for name, key in passes} for way, f in cells.items()}, values=True)
        label(all_axes[-1], "restarted process, after both passes", "MiB")
        cells = {cell.keys["way"]: cell.figures for cell in results.where(restarted=WARM)}
        kinds = (("the process' own", "own MiB"), ("mapped pages", "mapped MiB"))
        bars(
            all_axes[-1],
            {way: {name: f[key] for name, key in kinds} for way, f in cells.items()},
            values=True,
        )
        return all_axes[0].figure  # type: ignore[return-value]
