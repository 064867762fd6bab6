"""`merges`: chooses the pieces of a partition that become one piece in the next state, so that a state stays
short.

Sixteen or more neighbouring pieces are merged if each of them is smaller than a size of `SIZES`. Small sizes
are tried before larger sizes. Nothing is on disk. Threads: any; functions without state.
"""

from __future__ import annotations

from itertools import groupby

from segstore.archiving.pieces import ArchivedPiece

FEWEST = 16
SIZES = (1 << 16, 1 << 20, 16 << 20)
"""Sizes in bytes. A piece that is not smaller than the largest size is never merged."""


def merges(pieces: tuple[ArchivedPiece, ...]) -> list[tuple[ArchivedPiece, ...]]:
    """Return the runs of pieces to merge. The pieces of a run are of one segment, and become one piece."""
    for size in SIZES:
        runs = [
            tuple(run)
            for (_, small), run in groupby(pieces, key=lambda each: (each.base, each.length < size))
            if small
        ]
        if found := [run for run in runs if len(run) >= FEWEST]:
            return found
    return []
