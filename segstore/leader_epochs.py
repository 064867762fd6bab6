"""`LeaderEpochCache`: the leader epochs of a log, in memory (Kafka: LeaderEpochFileCache). Nothing is on
disk: `storage/meta/offset_checkpoints.py` reads and writes the file.

The storage has one cache for each partition, and replication uses the same object. Both packages import this
module, so it belongs to neither of them. Threads: one at a time, with the partition's lock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from segstore.errors import InvalidArgumentError

DISTANCE = 1 << 16
"""If a promoted store can't ask the old leader for its leader epoch, it leads with an epoch that is this much
above the largest epoch that it knows: the old leader may have begun a new epoch at each open after a crash.
"""


class EpochEnd(NamedTuple):
    """A leader epoch, and the offset after the last record of this epoch (Kafka: EpochEndOffset)."""

    epoch: int
    end_offset: int


UNDEFINED = EpochEnd(-1, -1)
"""The result for an unknown epoch (Kafka: UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET)."""


class LeaderEpochCache:
    """The leader epochs of a log, each with its start offset (Kafka: LeaderEpochFileCache; rules R3, R4 of
    docs/replication.md). Each entry has a larger epoch and a larger start offset than the entry before it.
    """

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._entries: list[tuple[int, int]] = []
        for epoch, start in entries:
            self.assign(epoch, start)

    def copy(self) -> LeaderEpochCache:
        """Return a copy of the cache."""
        made = LeaderEpochCache()
        made._entries = self._entries.copy()
        return made

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """Return the entries, as pairs (epoch, start offset) in ascending order."""
        return tuple(self._entries)

    @property
    def latest(self) -> int | None:
        """Return the newest epoch; None if there is none."""
        return self._entries[-1][0] if self._entries else None

    @property
    def current(self) -> int:
        """Return the newest epoch, which new appends get; -1 if there is none."""
        return self._entries[-1][0] if self._entries else -1

    def assign(self, epoch: int, start_offset: int) -> None:
        """Set the epoch of the offsets from `start_offset` on. Entries whose epoch is at least `epoch`, or
        whose start offset is at least `start_offset`, are removed (R3). If `epoch` is the newest epoch, and
        began at or before `start_offset`, nothing changes. Raises InvalidArgumentError if a number is below
        0.
        """
        if epoch < 0 or start_offset < 0:
            raise InvalidArgumentError(f"epoch {epoch} from offset {start_offset}: both must be at least 0")
        if self._entries and self._entries[-1][0] == epoch and self._entries[-1][1] <= start_offset:
            return
        while self._entries and (self._entries[-1][0] >= epoch or self._entries[-1][1] >= start_offset):
            self._entries.pop()
        self._entries.append((epoch, start_offset))

    def epoch_for_offset(self, offset: int) -> int | None:
        """Return the epoch of an offset; None if the offset is below all start offsets."""
        for epoch, start in reversed(self._entries):
            if start <= offset:
                return epoch
        return None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """Return the largest epoch of the cache that is not above `epoch`, with its end offset (R4; Kafka:
        LeaderEpochFileCache.endOffsetFor). The end offset of the newest epoch is `log_end_offset`.

        If `epoch` is below all epochs of the cache, return `epoch` itself; its end offset is then the start
        offset of the first epoch. If `epoch` is above all epochs of the cache, or is -1, return UNDEFINED.
        """
        if epoch < 0 or not self._entries or epoch > self._entries[-1][0]:
            return UNDEFINED
        if epoch == self._entries[-1][0]:
            return EpochEnd(epoch, log_end_offset)
        higher = bisect_right(self._entries, epoch, key=lambda entry: entry[0])
        known = self._entries[higher - 1][0] if higher else epoch
        return EpochEnd(known, self._entries[higher][1])

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the epochs that began at or after `end_offset`, because the log was truncated there."""
        while self._entries and self._entries[-1][1] >= end_offset:
            self._entries.pop()

    def truncate_from_start(self, start_offset: int) -> bool:
        """Remove the epochs that ended at or before `start_offset`, because the records below that offset
        were deleted. If the epoch of `start_offset` began before that offset, it now begins there. Return
        whether the cache changed.
        """
        before = self._entries
        later = [entry for entry in before if entry[1] > start_offset]
        ended = before[: len(before) - len(later)]
        self._entries = [(ended[-1][0], start_offset), *later] if ended else later
        return self._entries != before
