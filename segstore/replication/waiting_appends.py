"""Appends of applications that wait until all replicas in sync have their records (acks=all, R23)."""

from __future__ import annotations

from collections import deque
from queue import Empty, SimpleQueue

from segstore.errors import (
    NotEnoughReplicasAfterAppendError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    SegstoreError,
)
from segstore.replication.clock import now_ms
from segstore.replication.core.acks import DelayedProduce
from segstore.replication.core.effects import Complete
from segstore.replication.metadata.image import PartitionKey
from segstore.threads import take

Told = SimpleQueue[type[SegstoreError] | None]
_UNKNOWN: dict[type[SegstoreError], str] = {
    RequestTimedOutError: "the records were appended, and are not committed yet: the time is over",
    NotLeaderOrFollowerError: "the records were appended, but leadership has moved since",
    NotEnoughReplicasAfterAppendError: "the records were appended, but too few replicas are in sync by now",
}


class WaitingAppends:
    """Appends to one partition that its core has not been told of. Threads: any."""

    def __init__(self, key: PartitionKey) -> None:
        self._key = key
        self._waiting: deque[DelayedProduce] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, end_offset: int, timeout_ms: float) -> Told:
        """Add an append that ends at this offset; return the queue that gets its answer."""
        told: Told = SimpleQueue()
        self._waiting.append(DelayedProduce(end_offset, now_ms() + int(timeout_ms), told))
        return told

    def take(self) -> list[DelayedProduce]:
        """Return the appends that were added by now, for the core. One thread at a time calls this."""
        return [self._waiting.popleft() for _ in range(len(self._waiting))]

    def refuse(self) -> None:
        """Answer all with NotLeaderOrFollowerError."""
        while self._waiting:
            try:
                waiting = self._waiting.popleft()
            except IndexError:  # another thread has taken it
                return
            _told(waiting.ticket).put(NotLeaderOrFollowerError)

    def await_answer(self, told: Told, timeout_ms: float) -> None:
        """Wait for an answer. Raises NotEnoughReplicasAfterAppendError, NotLeaderOrFollowerError,
        RequestTimedOutError.
        """
        try:
            error = take(told, timeout_ms / 1000)
        except Empty:
            error = RequestTimedOutError
        if error is not None:
            raise error(f"{self._key}: {_UNKNOWN[error]}")


def answer(effect: Complete) -> None:
    """Answer one append, of which the core says how it has ended."""
    _told(effect.ticket).put(effect.error)


def _told(ticket: object) -> Told:
    assert isinstance(ticket, SimpleQueue)
    return ticket
