"""Pending writes of a share partition's state: the batches to write, and the transitions and dead letters
that follow the write (Kafka: WriteShareGroupState, SharePartition.rollbackOrProcessStateUpdates).

Owns nothing on disk. Threads: one at a time, under the share partition's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from segstore.coordinator.share.core.values import (
    Cause,
    DeadLetter,
    OffsetRange,
    RecordState,
    StateBatch,
    StateWrite,
)

# Calling `tuple.__new__`, which is C code, is faster than calling the class, whose `__new__` is Python code.
_batch: Callable[[tuple[int, int, int, int]], StateBatch] = partial(tuple.__new__, StateBatch)
_range: Callable[[tuple[int, int]], OffsetRange] = partial(tuple.__new__, OffsetRange)
_write: Callable[[tuple[Any, ...]], StateWrite] = partial(tuple.__new__, StateWrite)


class PendingWrite:
    """A write to which offsets are still added, or which is pending.

    `ranges` has the offsets whose transitions complete with the write. The dead letters in `letters` are sent
    after a successful write. If `stands` is set, memory was changed before the write, so a failed write has
    the same effects as a successful one (rule Q36 of docs/queue-rules.md). `begins` is True if the write has
    the share partition's first start offset (decision D2 of that page).
    """

    __slots__ = ("batches", "begins", "letters", "ranges", "stands", "token")

    def __init__(self, token: int, stands: bool = False, begins: bool = False) -> None:
        self.token, self.stands, self.begins = token, stands, begins
        self.ranges: list[OffsetRange] = []
        self.batches: list[StateBatch] = []
        self.letters: list[DeadLetter] = []

    def copy(self) -> PendingWrite:
        """Return an independent copy."""
        copied = PendingWrite(self.token, self.stands, self.begins)
        copied.ranges, copied.batches = list(self.ranges), list(self.batches)
        copied.letters = list(self.letters)
        return copied

    def transition(self, first: int, last: int) -> None:
        """Add offsets whose transition completes with this write."""
        ranges = self.ranges
        if ranges and ranges[-1].last == first - 1:
            first = ranges.pop().first
        ranges.append(_range((first, last)))

    def add(self, first: int, last: int, state: RecordState, count: int, cause: Cause) -> None:
        """Add offsets with their new state. Adjacent offsets of equal state and count become one batch."""
        batches = self.batches
        if batches and batches[-1][1:] == (first - 1, state, count):
            batches[-1] = StateBatch(batches[-1].first, last, state, count)
        else:
            batches.append(_batch((first, last, state, count)))
        if state is RecordState.ARCHIVING:
            self._send(first, last, count, cause)

    def _send(self, first: int, last: int, count: int, cause: Cause) -> None:
        letters = self.letters
        if letters and letters[-1][1:] == (first - 1, count, cause):
            first = letters.pop().first
        letters.append(DeadLetter(first, last, count, cause))

    def of(self, start: int, complete: int) -> StateWrite:
        """Return the StateWrite of this write. `start` is the start offset before the write (rule Q39)."""
        return _write((self.token, start, complete, tuple(self.batches)))
