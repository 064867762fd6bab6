"""`LockTimer`: releases the acquisition locks of a store's share partitions when they expire (Kafka:
AcquisitionLockTimerTask, one object per batch or offset).

Nothing is on disk. Threads: any; the store's scheduler calls `ring`. `plan` puts a share partition into a
heap with the expiry time of its earliest lock. If that lock is released or renewed before that time, the
timer checks the share partition in vain, which is harmless (rule Q37 of docs/queue-rules.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count

from segstore.coordinator.alarm import Alarm
from segstore.coordinator.metrics import MonotonicMs
from segstore.coordinator.share.partitions import ShareLeader
from segstore.mutex import Mutex
from segstore.storage.scheduler import Scheduler


class LockTimer:
    """Calls the function `expire` with the share partitions that may have an expired lock. `clock` returns
    monotonic ms.
    """

    def __init__(
        self, scheduler: Scheduler, clock: MonotonicMs, expire: Callable[[Sequence[ShareLeader]], None]
    ) -> None:
        self._clock, self._expire = clock, expire
        self._lock, self._count = Mutex(), count()
        self._heap: list[tuple[float, int, ShareLeader]] = []
        self._alarm = Alarm(scheduler, clock, self.ring)

    def plan(self, leader: ShareLeader) -> None:
        """Schedule the expiry of a share partition's earliest lock."""
        due = leader.core.deadline()
        if due is None or due >= leader.planned:
            return
        with self._lock:
            heappush(self._heap, (due, next(self._count), leader))
            # `planned` is set after the push: if an interrupt ends the push, the next call repeats it.
            leader.planned = due
        self._alarm.set(due)

    def ring(self) -> None:
        """Release the expired locks, and schedule the next call."""
        self._alarm.clear()
        due = self._due(self._clock())
        try:
            self._expire(due)
        finally:
            for leader in due:
                if not leader.is_fenced:
                    self.plan(leader)
            self._alarm.set(self._next())

    def _due(self, now: float) -> list[ShareLeader]:
        found: list[ShareLeader] = []
        with self._lock:
            while self._heap and self._heap[0][0] <= now:
                leader = heappop(self._heap)[2]
                leader.planned = math.inf
                found.append(leader)
        return list(dict.fromkeys(found))

    def _next(self) -> float:
        with self._lock:
            return self._heap[0][0] if self._heap else math.inf

    def stop(self) -> None:
        """Stop the timer: it never calls `expire` again."""
        self._alarm.stop()
