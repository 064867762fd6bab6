"""Which core sends and which receives: one each where there are two, always the same. Nothing on disk.

Left to the scheduler, both share a core at times, and a run takes twice as long as the next. Threads: the
caller's own is bound, and what it starts; the others of the process are not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


@contextmanager
def apart() -> Iterator[int | None]:
    """Keep this thread on one core, and give another's number; None, and nothing is bound, where there is
    none.
    """
    allowed = os.sched_getaffinity(0)
    ours, theirs = _pair(sorted(allowed))
    if theirs is None:
        yield None
        return
    os.sched_setaffinity(0, {ours})
    try:
        yield theirs
    finally:
        os.sched_setaffinity(0, allowed)


def _pair(allowed: list[int]) -> tuple[int, int | None]:
    """Two that are no threads of one core, where there are such."""
    ours, *others = allowed
    siblings = _siblings(ours)
    apart = [core for core in others if core not in siblings]
    return ours, next(iter([*apart, *others]), None)


def _siblings(core: int) -> set[int]:
    try:
        with open(_SIBLINGS.format(core), encoding="ascii") as file:
            spans = [part.split("-") for part in file.read().strip().split(",")]
    except OSError:
        return set()
    return {n for first, *last in spans for n in range(int(first), int(last[0] if last else first) + 1)}
