"""Produce requests with acks=all that wait until their records are committed (Kafka: DelayedProduce and its
purgatory; rule R23).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Hashable, Iterable
from operator import attrgetter
from typing import NamedTuple

from segstore.errors import (
    NotEnoughReplicasAfterAppendError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    SegstoreError,
)
from segstore.replication.core.effects import Complete

_required = attrgetter("required_offset")


class DelayedProduce(NamedTuple):
    """A waiting request. The request is complete when the high watermark reaches `required_offset`. At
    `deadline_ms` the request fails.
    """

    required_offset: int
    deadline_ms: int
    ticket: Hashable


class DelayedProduces:
    """The waiting requests of one partition, by ascending required offset."""

    __slots__ = ("_waiting",)

    def __init__(self, waiting: Iterable[DelayedProduce] = ()) -> None:
        self._waiting = list(waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> tuple[DelayedProduce, ...]:
        """Return the waiting requests, by ascending required offset."""
        return tuple(self._waiting)

    def copy(self) -> DelayedProduces:
        """Return a copy."""
        return DelayedProduces(self._waiting)

    def add(self, request: DelayedProduce) -> None:
        """Add a waiting request."""
        insort(self._waiting, request, key=_required)

    def reach(self, high_watermark: int, enough: bool) -> tuple[Complete, ...]:
        """Answer the requests whose records end at or below the high watermark, and return the answers.
        `enough` is False if the maximal ISR has fewer members than min.insync.replicas. If `enough` is False,
        these requests fail with NotEnoughReplicasAfterAppendError (Kafka:
        Partition.checkEnoughReplicasReachOffset).
        """
        error = None if enough else NotEnoughReplicasAfterAppendError
        return self._end(bisect_right(self._waiting, high_watermark, key=_required), error)

    def expire(self, now_ms: int) -> tuple[Complete, ...]:
        """Fail the requests whose deadline has come, and return their answers. The records of a failed
        request may still be committed later.
        """
        late = [request for request in self._waiting if request.deadline_ms <= now_ms]
        if late:
            self._waiting = [request for request in self._waiting if request.deadline_ms > now_ms]
        return tuple(Complete(request.ticket, RequestTimedOutError) for request in late)

    def lose_leadership(self) -> tuple[Complete, ...]:
        """Fail all requests, and return their answers. Another leader may truncate their records."""
        return self._end(len(self._waiting), NotLeaderOrFollowerError)

    def _end(self, count: int, error: type[SegstoreError] | None) -> tuple[Complete, ...]:
        ended = self._waiting[:count]
        del self._waiting[:count]
        return tuple(Complete(request.ticket, error) for request in ended)
