"""What is measured: which sizes, caches, sinks and methods, how often and how long. Nothing on disk.
Threads: any.

A cell is one way to send `size` bytes at a time to one sink. "log" is `PartitionLog.transfer` as users call
it; "bare" is what the method does once it is known where the bytes lie, over and over: the system calls
without the engine. Only "log" is measured cold too.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from segstore.bench.zero_copy.receivers import SINKS
from segstore.storage.transfer import METHODS

KIB, MIB = 1 << 10, 1 << 20
SIZES = {
    "100 B": 100,
    **{f"{n} KiB": n * KIB for n in (1, 4, 10, 16, 64, 256)},
    "1 MiB": MIB,
    "16 MiB": 16 * MIB,
}
SIZE_NAMES = {size: name for name, size in SIZES.items()}
RUNS = 11
"""Short ones: what else the machine does bears on some of them, and their interval leaves these out."""
CACHES = ("warm", "cold")
WAYS = LOG, BARE = ("log", "bare")
OS_SENDFILE = "os.sendfile"
"""A bare loop of Python's own os.sendfile: what the engine is held against."""


class Group(NamedTuple):
    """Contenders that are measured by turns, as they do the same."""

    size: int
    cache: str
    sink: str


class Contender(NamedTuple):
    way: str
    method: str


@dataclass(frozen=True)
class Plan:
    """How much is measured. `seconds`: how long a run shall be; `stretch`: about how many bytes a log has,
    which is also the most that a run sends."""

    sizes: tuple[int, ...] = tuple(SIZES.values())
    caches: tuple[str, ...] = CACHES
    sinks: tuple[str, ...] = SINKS
    methods: tuple[str, ...] = METHODS
    runs: int = RUNS
    seconds: float = 0.04
    stretch: int = 64 * MIB

    def groups(self) -> list[Group]:
        """In the order in which they are measured, in each pass."""
        order = product(self.sinks, self.caches, self.sizes)
        return [Group(size, cache, sink) for sink, cache, size in order]


def quick(plan: Plan) -> Plan:
    """Seconds in place of minutes: that all works, no figures to rely on."""
    sizes = tuple(size for size in plan.sizes if size in (KIB, 64 * KIB, MIB)) or plan.sizes[:1]
    return Plan(sizes, plan.caches, plan.sinks, plan.methods, min(plan.runs, 2), 0.002, 2 * MIB)
