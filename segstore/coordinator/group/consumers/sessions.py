"""`Sessions`: until when the members of a consumer group must have done what is waited for: be heard of, give
up partitions, join anew, ask for their assignment (Kafka: the timers of GroupMetadataManager).

Threads: under the group's lock. Times are ms of the monotonic clock.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from enum import Enum


class Wait(Enum):
    """What a group waits for. Members of KIP-848 give up partitions within their rebalance timeout; those of
    the classic protocol join, and then sync.
    """

    SESSION = "session"
    REVOKE = "revoke"
    JOIN = "join"
    SYNC = "sync"


class Sessions:
    """Each member has a place in a heap for the earliest time at which its end may have come: a heartbeat,
    which puts the end off, costs nothing there.
    """

    def __init__(self) -> None:
        self._ends: dict[str, dict[Wait, float]] = {}
        self._planned: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def await_until(self, member_id: str, wait: Wait, until: float) -> None:
        """Wait for the member until this time."""
        self._ends.setdefault(member_id, {})[wait] = until
        self._plan(member_id)

    def begin(self, member_id: str, wait: Wait, until: float) -> None:
        """Do what `await_until` does, unless the member is waited for already."""
        if wait not in self._ends.get(member_id, {}):
            self.await_until(member_id, wait, until)

    def end(self, member_id: str, *waits: Wait) -> None:
        """Wait for this no longer."""
        held = self._ends.get(member_id, {})
        for wait in waits:
            held.pop(wait, None)

    def forget(self, member_ids: Iterable[str]) -> None:
        """Forget members that are no more in the group."""
        for member_id in member_ids:
            self._ends.pop(member_id, None)

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
        return min(self._ends.get(member_id, {}).values(), default=math.inf)

    def _plan(self, member_id: str) -> None:
        end = self._end(member_id)
        if end < self._planned.get(member_id, math.inf):
            self._planned[member_id] = end
            heapq.heappush(self._heap, (end, member_id))
