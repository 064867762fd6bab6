"""Defines the kinds of power cuts."""

from __future__ import annotations

import random
from collections.abc import Callable

from .content import PAGE, Draw
from .disk import Disk

SOME = 0.5

MODES: dict[str, Callable[[random.Random, Disk], Draw]] = {
    # nothing that was not synced survives
    "none": lambda rng, disk: Draw(rng),
    # everything survives, as after a SIGKILL
    "all": lambda rng, disk: Draw(rng, 1.0, 1.0, 1.0),
    # every name survives and no data: files are as long as they were when last synced
    "names": lambda rng, disk: Draw(rng, 0.0, 0.0, 1.0),
    # every name and size survives, with zeros in place of data
    "zeros": lambda rng, disk: Draw(rng, 0.0, 1.0, 1.0),
    # all data survives of files whose names are durable
    "data": lambda rng, disk: Draw(rng, 1.0, 1.0, 0.0),
    # any sectors and any sizes survive, and the names of a journal's beginning
    "sectors": lambda rng, disk: Draw(rng, SOME, SOME, SOME),
    # the same in pages
    "pages": lambda rng, disk: Draw(rng, SOME, SOME, SOME, PAGE),
    # any sectors, sizes and names survive, each for itself
    "shuffled": lambda rng, disk: Draw(rng, SOME, SOME, SOME, ordered=False),
    # all data survives, and each name for itself
    "unordered": lambda rng, disk: Draw(rng, 1.0, 1.0, SOME, ordered=False),
    # all up to some moment survives, and a part of the write at it
    "torn": lambda rng, disk: Draw(rng, upto=rng.choice(disk.unsynced() or [0])),
}


def draw_of(mode: str, rng: random.Random, disk: Disk) -> Draw:
    """Draw what survives a cut of this kind, now."""
    return MODES[mode](rng, disk)
