"""`Sessions`: until when the members of a consumer group must be heard of, and must have given up partitions
(Kafka: the session and rebalance timers of GroupMetadataManager).

Threads: under the group's lock. Times are ms of the monotonic clock.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable


class Sessions:
    """Each member has a place in a heap for the earliest time at which its end may have come: a heartbeat,
    which puts the end off, costs nothing there.
    """

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}
        self._revoked: dict[str, float] = {}
        self._planned: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def extend(self, member_id: str, until: float) -> None:
        """Have the member's session end at this time."""
        self._ends[member_id] = until
        self._plan(member_id)

    def must_revoke(self, member_id: str, until: float) -> None:
        """Have the member give up partitions until this time."""
        self._revoked[member_id] = until
        self._plan(member_id)

    def has_revoked(self, member_id: str) -> None:
        """Take back what `must_revoke` has said."""
        self._revoked.pop(member_id, None)

    def forget(self, member_ids: Iterable[str]) -> None:
        """Forget members that are no more in the group."""
        for member_id in member_ids:
            self._ends.pop(member_id, None)
            self._revoked.pop(member_id, None)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._ends

    def over(self, now: float) -> list[str]:
        """Return the members whose time is over, which are planned no more."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            planned, member_id = heapq.heappop(self._heap)
            if self._planned.get(member_id) != planned:
                continue  # an earlier time has taken its place
            del self._planned[member_id]
            if self._end(member_id) <= now:
                found.append(member_id)
            else:
                self._plan(member_id)
        return found

    def due(self) -> float:
        """Return when `over` may find something; inf where it won't."""
        return self._heap[0][0] if self._heap else math.inf

    def _end(self, member_id: str) -> float:
        return min(self._ends.get(member_id, math.inf), self._revoked.get(member_id, math.inf))

    def _plan(self, member_id: str) -> None:
        end = self._end(member_id)
        if end < self._planned.get(member_id, math.inf):
            self._planned[member_id] = end
            heapq.heappush(self._heap, (end, member_id))
