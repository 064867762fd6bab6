"""`Timers`: calls at later times, ordered by time. Threads: the loop's thread only."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

LONGEST_WAIT = 86_400.0
"""The longest sleep of the loop, in seconds. It is limited because epoll_wait(2) does not accept a timeout of
years.
"""
NEVER = math.inf
_MOST_CANCELLED = 256


class LoopTimer:
    """A call that is to be made at the time `due`, in monotonic seconds. Implements
    `segstore.server.node.Timer`.
    """

    __slots__ = ("_cancelled", "call", "due")

    def __init__(self, due: float, call: Callable[[], object], cancelled: list[int]) -> None:
        self.due, self._cancelled = due, cancelled
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """Cancel the call. A second `cancel` does nothing."""
        if self.call is not None:
            self.call = None
            self._cancelled[0] += 1


class Timers:
    """A heap of timers. A cancelled timer is removed when it is due, or earlier if many timers are
    cancelled.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, LoopTimer]] = []
        self._numbers = itertools.count()
        self._cancelled = [0]
        self.due = NEVER
        """The time of the earliest timer, even if this timer is cancelled; NEVER if there are no timers."""

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due: float, call: Callable[[], object]) -> LoopTimer:
        """Add a timer. `take` returns the timer's call when the time `due` has come."""
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
        """Return the seconds until the earliest timer is due, at most LONGEST_WAIT; -1 if there are no
        timers.
        """
        return -1.0 if self.due == NEVER else min(max(self.due - now, 0.0), LONGEST_WAIT)

    def take(self, now: float) -> Callable[[], object] | None:
        """Remove the earliest timer that is due, and return its call. Return None if no timer is due."""
        while self.due <= now:
            timer = heapq.heappop(self._heap)[2]
            self.due = self._heap[0][0] if self._heap else NEVER
            if timer.call is not None:
                call, timer.call = timer.call, None
                return call
            self._cancelled[0] -= 1
        return None
