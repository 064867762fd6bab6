"""`Timers`: calls that are due later, in order of time. Threads: the loop's only."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

LONGEST_WAIT = 86_400.0
"""Seconds that the loop sleeps at most: the system's calls don't take years."""
NEVER = math.inf
_MOST_CANCELLED = 256


class LoopTimer:
    """A call that is due at `due`, in monotonic seconds; see `segstore.server.node.Timer`."""

    __slots__ = ("_cancelled", "call", "due")

    def __init__(self, due: float, call: Callable[[], object], cancelled: list[int]) -> None:
        self.due, self._cancelled = due, cancelled
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """Do not call; a second time does nothing."""
        if self.call is not None:
            self.call = None
            self._cancelled[0] += 1


class Timers:
    """Those that were cancelled leave the heap when they are due, or sooner where they are the most of it."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, LoopTimer]] = []
        self._numbers = itertools.count()
        self._cancelled = [0]
        self.due = NEVER
        """When the first one is due, which may have been cancelled; NEVER where there is none."""

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due: float, call: Callable[[], object]) -> LoopTimer:
        """Have `call` returned by `take` from `due` on."""
        timer = LoopTimer(due, call, self._cancelled)
        heapq.heappush(self._heap, (due, next(self._numbers), timer))
        self.due = self._heap[0][0]
        if self._cancelled[0] > max(_MOST_CANCELLED, len(self._heap) // 2):
            self._heap = [each for each in self._heap if each[2].call is not None]
            heapq.heapify(self._heap)
            self._cancelled[0] = 0
            self.due = self._heap[0][0] if self._heap else NEVER
        return timer

    def pause(self, now: float) -> float:
        """Return the seconds until something is due; -1 where nothing ever is."""
        return -1.0 if self.due == NEVER else min(max(self.due - now, 0.0), LONGEST_WAIT)

    def take(self, now: float) -> Callable[[], object] | None:
        """Return a call that is due, which is done with then; None where there is none."""
        while self.due <= now:
            timer = heapq.heappop(self._heap)[2]
            self.due = self._heap[0][0] if self._heap else NEVER
            if timer.call is not None:
                call, timer.call = timer.call, None
                return call
            self._cancelled[0] -= 1
        return None
