"""`merges`: chooses the pieces of a partition that become one piece in the next state, so that a state stays
short.

Neighbouring pieces that are all smaller than a size are merged if they are sixteen or more. Small sizes are
tried before larger sizes. Nothing is on disk. Threads: any; functions without state.
"""

from __future__ import annotations

from itertools import groupby

from segstore.archiving.pieces import ArchivedPiece

FEWEST = 16
SIZES = (1 << 16, 1 << 20, 16 << 20)
"""Sizes in bytes; a piece of the largest size or more is not merged any more."""


def merges(pieces: tuple[ArchivedPiece, ...]) -> list[tuple[ArchivedPiece, ...]]:
    """Return the runs of pieces to merge; each run is of one segment, and becomes one piece."""
    for size in SIZES:
        runs = [
            tuple(run)
            for (_, small), run in groupby(pieces, key=lambda each: (each.base, each.length < size))
            if small
        ]
        if found := [run for run in runs if len(run) >= FEWEST]:
            return found
    return []
