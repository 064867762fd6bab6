"""`WaitingAppends`: appends with acks=all that wait until all in-sync replicas have their records (R23).

Nothing is on disk. Threads: any.
"""

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

AnswerQueue = SimpleQueue[type[SegstoreError] | None]
_UNKNOWN: dict[type[SegstoreError], str] = {
    RequestTimedOutError: "the records were appended, and are not committed yet: the time is over",
    NotLeaderOrFollowerError: "the records were appended, but leadership has moved since",
    NotEnoughReplicasAfterAppendError: "the records were appended, but too few replicas are in sync by now",
}


class WaitingAppends:
    """Appends with acks=all to one partition. They were not passed to `LocalReplica.core` yet."""

    def __init__(self, key: PartitionKey) -> None:
        self._key = key
        self._waiting: deque[DelayedProduce] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, end_offset: int, timeout_ms: float) -> AnswerQueue:
        """Add an append whose records end at `end_offset`. Return the queue that gets the answer."""
        queue: AnswerQueue = SimpleQueue()
        self._waiting.append(DelayedProduce(end_offset, now_ms() + int(timeout_ms), queue))
        return queue

    def take(self) -> list[DelayedProduce]:
        """Remove all appends from this object, and return them. The caller passes them to `core`. One
        thread at a time may call `take`.
        """
        return [self._waiting.popleft() for _ in range(len(self._waiting))]

    def refuse(self) -> None:
        """Answer all waiting appends with NotLeaderOrFollowerError."""
        while self._waiting:
            try:
                waiting = self._waiting.popleft()
            except IndexError:  # Another thread has taken the last append.
                return
            _queue_of(waiting.ticket).put(NotLeaderOrFollowerError)

    def await_answer(self, queue: AnswerQueue, timeout_ms: float) -> None:
        """Wait for the answer to an append, and raise its error, if it has one:
        NotEnoughReplicasAfterAppendError, NotLeaderOrFollowerError, RequestTimedOutError.
        """
        try:
            error = take(queue, timeout_ms / 1000)
        except Empty:
            error = RequestTimedOutError
        if error is not None:
            raise error(f"{self._key}: {_UNKNOWN[error]}")


def answer(effect: Complete) -> None:
    """Put the answer to one append into the append's queue."""
    _queue_of(effect.ticket).put(effect.error)


def _queue_of(ticket: object) -> AnswerQueue:
    assert isinstance(ticket, SimpleQueue)
    return ticket
