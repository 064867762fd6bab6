"""The kinds of power cuts."""

from __future__ import annotations

import random
from collections.abc import Callable

from .content import PAGE, Draw
from .disk import Disk

SOME = 0.5
SECTOR = 512

MODES: dict[str, Callable[[random.Random, Disk], Draw]] = {
    # nothing that was not synced
    "none": lambda rng, disk: Draw(rng),
    # everything, as a SIGKILL would leave it
    "all": lambda rng, disk: Draw(rng, 1.0, 1.0, 1.0),
    # every name and no data: files are as long as they were when last synced
    "names": lambda rng, disk: Draw(rng, 0.0, 0.0, 1.0),
    # every name and size: zeros in place of data
    "zeros": lambda rng, disk: Draw(rng, 0.0, 1.0, 1.0),
    # all data of files whose names are durable
    "data": lambda rng, disk: Draw(rng, 1.0, 1.0, 0.0),
    # any sectors, any sizes, and the names of a journal's beginning
    "sectors": lambda rng, disk: Draw(rng, SOME, SOME, SOME),
    # the same in pages
    "pages": lambda rng, disk: Draw(rng, SOME, SOME, SOME, PAGE),
    # any sectors, sizes and names, each for itself
    "shuffled": lambda rng, disk: Draw(rng, SOME, SOME, SOME, ordered=False),
    # all data; names each for itself
    "unordered": lambda rng, disk: Draw(rng, 1.0, 1.0, SOME, ordered=False),
    # all up to some moment, and a part of the write at it
    "torn": lambda rng, disk: Draw(rng, upto=rng.choice(disk.unsynced() or [0])),
}


def draw_of(mode: str, rng: random.Random, disk: Disk) -> Draw:
    """What survives a cut of this kind, now."""
    return MODES[mode](rng, disk)
