"""`Sessions`: the deadlines of a consumer group's members for a heartbeat, a revocation, a join and a sync
(Kafka: the timers of GroupMetadataManager).

Threads: under the group's lock. Times are ms of the monotonic clock.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from enum import Enum


class Wait(Enum):
    """An action for which a member has a deadline. SESSION stands for a heartbeat. KIP-848 members
    revoke partitions within their rebalance timeout; classic members join, and then sync.
    """

    SESSION = "session"
    REVOKE = "revoke"
    JOIN = "join"
    SYNC = "sync"


class Sessions:
    """The deadlines of all members. The heap has one valid entry for each member that has a deadline. The
    entry's time is the member's earliest deadline, or an earlier time. So a heartbeat, which only postpones a
    deadline, does not change the heap.
    """

    def __init__(self) -> None:
        self._ends: dict[str, dict[Wait, float]] = {}
        self._planned: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def await_until(self, member_id: str, wait: Wait, until: float) -> None:
        """Set the member's deadline for one action."""
        self._ends.setdefault(member_id, {})[wait] = until
        self._plan(member_id)

    def begin(self, member_id: str, wait: Wait, until: float) -> None:
        """Set the member's deadline for one action, unless this deadline is already set."""
        if wait not in self._ends.get(member_id, {}):
            self.await_until(member_id, wait, until)

    def end(self, member_id: str, *waits: Wait) -> None:
        """Remove the member's deadlines for these actions."""
        ends = self._ends.get(member_id, {})
        for wait in waits:
            ends.pop(wait, None)

    def forget(self, member_ids: Iterable[str]) -> None:
        """Remove all deadlines of members that have left the group."""
        for member_id in member_ids:
            self._ends.pop(member_id, None)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._ends

    def over(self, now: float) -> list[str]:
        """Return the ids of the members with a deadline that has passed, and remove these members from the
        heap.
        """
        found = []
        while self._heap and self._heap[0][0] <= now:
            planned, member_id = heapq.heappop(self._heap)
            if self._planned.get(member_id) != planned:
                continue  # the entry is outdated: a later call has planned an earlier time
            del self._planned[member_id]
            if self._end(member_id) <= now:
                found.append(member_id)
            else:
                self._plan(member_id)
        return found

    def due(self) -> float:
        """Return the time at which `over` must be called next; inf if the heap is empty."""
        return self._heap[0][0] if self._heap else math.inf

    def _end(self, member_id: str) -> float:
        return min(self._ends.get(member_id, {}).values(), default=math.inf)

    def _plan(self, member_id: str) -> None:
        end = self._end(member_id)
        if end < self._planned.get(member_id, math.inf):
            self._planned[member_id] = end
            heapq.heappush(self._heap, (end, member_id))
