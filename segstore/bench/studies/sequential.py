"""The study that compares sequential writes with random writes. On disk: one file in the scratch directory.
Threads: one.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from segstore.bench.plots import bars, label, panels
from segstore.bench.results import ClaimFinding, Progress, Results
from segstore.bench.studies.common import SEED, concluded, drop_pages, measure, noise, scratch, seconds
from segstore.bench.studies.words import answer, contest, size_text
from segstore.files import Path

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

NAME = "sequential-writes"
QUESTION = "Is writing in order faster than writing the same bytes all over a file?"
ABOUT = """\
The same bytes are written to the same file by one pwrite for each block: appended while the file grows, as
in a log; over the existing bytes, in order; and over the existing bytes, each block once, shuffled. They go
into the page cache alone; with one fdatasync after all of them, within the measured time; or with one
fdatasync after each block (with fewer blocks). Before each run the file is synced and dropped from the page
cache, and blocks are whole pages, so that none has to be read first. An append has to allocate blocks and
to sync the file's size, which the two others have not. The study can't show a disk with heads: on an SSD,
or a virtual disk whose host has a cache of its own, a distant position costs what a near one does, and the
kernel sorts the blocks that it writes back."""

SHOWN = ("MB/s", "writes/s")
APPEND, IN_ORDER, SHUFFLED = "append", "in order", "shuffled"
ORDERS = (APPEND, IN_ORDER, SHUFFLED)
CACHE, AT_END, EACH = "page cache", "fdatasync at end", "fdatasync each"
DURABILITY = (CACHE, AT_END, EACH)
BLOCKS = (4096, 65536)


def run(directory: Path, quick: bool, runs: int, progress: Progress) -> Results:
    """Measure writes in each order, with each kind of sync and each block size, and return the results.
    Raises OSError.
    """
    total, synced = (2 << 20, 8) if quick else (32 << 20, 48)
    data = noise(total)
    with scratch(directory) as path:
        fd = os.open(os.path.join(path, "file"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            variants = {
                (order, block, how): partial(_write, fd, data, order, block, how, synced)
                for how in DURABILITY
                for block in BLOCKS
                for order in ORDERS
            }
            cells = measure(("order", "block bytes", "durability"), variants, runs, progress, NAME)
        finally:
            os.close(fd)
        settings = {"runs": runs, "quick": quick, "file bytes": total, "writes with a sync each": synced}
        return concluded(sys.modules[__name__], path, cells, settings)


def _write(fd: int, data: bytes, order: str, block: int, how: str, synced: int) -> Mapping[str, float]:
    """Write all blocks of the file, or at most `synced` blocks if each write is synced. Return the MB/s and
    writes/s.
    """
    os.ftruncate(fd, 0)
    if order != APPEND:
        os.pwrite(fd, data, 0)
    drop_pages(fd)
    places = range(0, len(data), block)
    count = min(synced, len(places)) if how == EACH else len(places)
    chosen = random.Random(SEED).sample(places, count) if order == SHUFFLED else places[:count]
    blocks = [(data[at : at + block], at) for at in chosen]
    took = seconds(lambda: _passed(fd, blocks, how))
    # This sync is not measured. Without it the next run would begin with dirty pages.
    os.fdatasync(fd)
    return {"MB/s": count * block / took / 1e6, "writes/s": count / took}


def _passed(fd: int, blocks: list[tuple[bytes, int]], how: str) -> None:
    for piece, at in blocks:
        os.pwrite(fd, piece, at)
        if how == EACH:
            os.fdatasync(fd)
    if how == AT_END:
        os.fdatasync(fd)


def findings(results: Results) -> list[ClaimFinding]:
    """Return two findings. One compares writes in order with writes in shuffled order. The other compares
    overwriting a file with appending to a growing file.
    """

    def contests(first: str, second: str) -> str:
        return answer(
            [
                contest(
                    results,
                    "order",
                    (first, second),
                    "MB/s",
                    True,
                    {"block bytes": block, "durability": how},
                    (f"{how}, {size_text(block)} a write", first, second),
                )
                for how in results.values("durability")
                for block in results.values("block bytes")
            ]
        )

    return [
        ClaimFinding(
            "Writing in order is much faster than writing all over the file.",
            f"{contests(IN_ORDER, SHUFFLED)} {_disk(results.machine['filesystem'])}",
        ),
        ClaimFinding(
            "Appending to a growing file costs more than writing over what is there.",
            contests(IN_ORDER, APPEND),
        ),
    ]


def _disk(filesystem: Mapping[str, Any]) -> str:
    """Return a sentence about the disk on which the file was written."""
    where = f"This is {filesystem['type']} on {filesystem['device']}"
    if filesystem["rotational"] is None:
        return f"{where}, no block device."
    spins = "rotating" if filesystem["rotational"] else "not rotating"
    if filesystem["virtual"]:
        return (
            f"{where}, a virtual disk (it says of itself: {spins}): what lies behind it only its host knows."
        )
    return f"{where}, which says that it is {spins}."


def plot(results: Results) -> Picture:
    """Return a picture with a panel for each kind of sync."""
    with panels("The same bytes, in order and all over the file", len(DURABILITY)) as all_axes:
        for axes, how in zip(all_axes, results.values("durability"), strict=True):
            label(axes, f"bytes a write; {how}", "MB/s")
            groups = {
                size_text(block): {
                    order: results.cell(order=order, durability=how, **{"block bytes": block}).figures["MB/s"]
                    for order in results.values("order")
                }
                for block in results.values("block bytes")
            }
            bars(axes, groups, values=True)
        return all_axes[0].figure  # type: ignore[return-value]
