"""The times at which acquisition locks end (Kafka: AcquisitionLockTimerTask, one object per batch or offset).

A time is known as long as an offset is locked until then, so a lock that was renewed or given up leaves
nothing behind that could end another (KAFKA-19476).

Owns nothing on disk. Threads: one at a time, the share partition's lock.
"""

from __future__ import annotations

from heapq import heappop, heappush


class LockDeadlines:
    """The ends of locks, in ms, with the number of offsets that are locked until then."""

    __slots__ = ("_heap", "_offsets")

    def __init__(self) -> None:
        self._offsets: dict[float, int] = {}
        self._heap: list[float] = []

    def copy(self) -> LockDeadlines:
        """Return deadlines that change independently."""
        copied = LockDeadlines()
        copied._offsets, copied._heap = dict(self._offsets), list(self._heap)
        return copied

    def add(self, until: float, offsets: int) -> None:
        """Note that `offsets` more are locked until `until`."""
        if until not in self._offsets:
            heappush(self._heap, until)
        self._offsets[until] = self._offsets.get(until, 0) + offsets

    def remove(self, until: float, offsets: int) -> None:
        """Note that `offsets` are locked until `until` no more."""
        left = self._offsets[until] - offsets
        if left:
            self._offsets[until] = left
        else:
            del self._offsets[until]

    def earliest(self) -> float | None:
        """Return the earliest end, None if nothing is locked."""
        heap = self._heap
        while heap and heap[0] not in self._offsets:
            heappop(heap)
        return heap[0] if heap else None

    def counts(self) -> dict[float, int]:
        """Return the number of locked offsets by the end of their lock."""
        return dict(self._offsets)
