"""`LockDeadlines`: the times at which acquisition locks expire (Kafka: AcquisitionLockTimerTask, one object
per batch or offset).

An expiry time is stored only while an offset is locked until that time. So a lock that was renewed or
released leaves no timer that could release another lock (KAFKA-19476).

Owns nothing on disk. Threads: one at a time, under the share partition's lock.
"""

from __future__ import annotations

from heapq import heappop, heappush


class LockDeadlines:
    """The expiry times of locks, in ms, each with the number of offsets that are locked until that time."""

    __slots__ = ("_heap", "_offsets")

    def __init__(self) -> None:
        self._offsets: dict[float, int] = {}
        self._heap: list[float] = []

    def copy(self) -> LockDeadlines:
        """Return an independent copy."""
        copied = LockDeadlines()
        copied._offsets, copied._heap = dict(self._offsets), list(self._heap)
        return copied

    def add(self, until: float, offsets: int) -> None:
        """Count `offsets` more offsets that are locked until the time `until`."""
        if until not in self._offsets:
            heappush(self._heap, until)
        self._offsets[until] = self._offsets.get(until, 0) + offsets

    def remove(self, until: float, offsets: int) -> None:
        """Count `offsets` fewer offsets that are locked until the time `until`."""
        remaining = self._offsets[until] - offsets
        if remaining:
            self._offsets[until] = remaining
        else:
            del self._offsets[until]

    def earliest(self) -> float | None:
        """Return the earliest expiry time, None if no offset is locked."""
        heap = self._heap
        while heap and heap[0] not in self._offsets:
            heappop(heap)
        return heap[0] if heap else None

    def counts(self) -> dict[float, int]:
        """Return a dict from each expiry time to the number of offsets that are locked until that time."""
        return dict(self._offsets)
