"""`Timers`: calls at later times, ordered by time. Threads: the loop's thread only."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

LONGEST_WAIT = 86_400.0
"""Longest sleep of the loop in seconds, because epoll_wait(2) does not accept years."""
NEVER = math.inf
_MOST_CANCELLED = 256


class LoopTimer:
    """A call that is due at `due`, in monotonic seconds (a `segstore.server.node.Timer`)."""

    __slots__ = ("_cancelled", "call", "due")

    def __init__(self, due: float, call: Callable[[], object], cancelled: list[int]) -> None:
        self.due, self._cancelled = due, cancelled
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """Cancel the call; a second time does nothing."""
        if self.call is not None:
            self.call = None
            self._cancelled[0] += 1


class Timers:
    """A heap of timers. Cancelled timers are removed when they are due, or sooner if most timers are
    cancelled.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, LoopTimer]] = []
        self._numbers = itertools.count()
        self._cancelled = [0]
        self.due = NEVER
        """Time of the first timer, even if this timer is cancelled; NEVER without timers."""

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due: float, call: Callable[[], object]) -> LoopTimer:
        """Add a timer; `take` returns its call once `due` has passed."""
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
        """Return the seconds until the first timer is due, -1 without timers."""
        return -1.0 if self.due == NEVER else min(max(self.due - now, 0.0), LONGEST_WAIT)

    def take(self, now: float) -> Callable[[], object] | None:
        """Remove the next due timer and return its call, or None if none is due."""
        while self.due <= now:
            timer = heapq.heappop(self._heap)[2]
            self.due = self._heap[0][0] if self._heap else NEVER
            if timer.call is not None:
                call, timer.call = timer.call, None
                return call
            self._cancelled[0] -= 1
        return None
