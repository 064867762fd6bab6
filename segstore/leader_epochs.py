"""The leader epochs of a log, in memory (Kafka: LeaderEpochFileCache). Nothing is on disk:
`storage/meta/offset_checkpoints.py` has the file.

The storage keeps one cache per partition, and replication uses the same object; so this module lies below
both. Threads: the holder of the partition's lock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from segstore.errors import InvalidArgumentError

DISTANCE = 1 << 16
"""The number of leader epochs that a promoted store skips above the largest known epoch if it can't ask the
old leader, which may have begun more epochs, one at each open after a crash.
"""


class EpochEnd(NamedTuple):
    """A leader epoch and its end offset, the offset after its last record (Kafka: EpochEndOffset)."""

    epoch: int
    end_offset: int


UNDEFINED = EpochEnd(-1, -1)
"""The answer for an unknown epoch (Kafka: UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET)."""


class LeaderEpochCache:
    """The leader epochs of a log with their start offsets (Kafka: LeaderEpochFileCache; rules R3, R4 of
    docs/replication.md). Epochs and start offsets both rise.
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
        """Return the pairs of epoch and start offset, rising."""
        return tuple(self._entries)

    @property
    def latest(self) -> int | None:
        """Return the newest epoch, None without one."""
        return self._entries[-1][0] if self._entries else None

    @property
    def current(self) -> int:
        """Return the epoch of new appends, which is the newest epoch, -1 if there is none."""
        return self._entries[-1][0] if self._entries else -1

    def assign(self, epoch: int, start_offset: int) -> None:
        """Set the epoch of the offsets from `start_offset` on. The newest entries are dropped while their
        epoch is at least `epoch`, or their start offset at least `start_offset` (R3). Nothing changes if
        `epoch` is the newest epoch already, and began at `start_offset` or before. Raises
        InvalidArgumentError for numbers below 0.
        """
        if epoch < 0 or start_offset < 0:
            raise InvalidArgumentError(f"epoch {epoch} from offset {start_offset}: both must be at least 0")
        if self._entries and self._entries[-1][0] == epoch and self._entries[-1][1] <= start_offset:
            return
        while self._entries and (self._entries[-1][0] >= epoch or self._entries[-1][1] >= start_offset):
            self._entries.pop()
        self._entries.append((epoch, start_offset))

    def epoch_for_offset(self, offset: int) -> int | None:
        """Return the epoch of an offset; None below the first start offset."""
        for epoch, start in reversed(self._entries):
            if start <= offset:
                return epoch
        return None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """Return the largest known epoch that is not above `epoch`, with its end offset in a log that ends at
        `log_end_offset` (R4; Kafka: LeaderEpochFileCache.endOffsetFor).

        If `epoch` is below the first known epoch, return `epoch` itself, with the start offset of the first
        known epoch as its end offset. Return UNDEFINED if `epoch` is above all known epochs, or -1.
        """
        if epoch < 0 or not self._entries or epoch > self._entries[-1][0]:
            return UNDEFINED
        if epoch == self._entries[-1][0]:
            return EpochEnd(epoch, log_end_offset)
        higher = bisect_right(self._entries, epoch, key=lambda entry: entry[0])
        known = self._entries[higher - 1][0] if higher else epoch
        return EpochEnd(known, self._entries[higher][1])

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove epochs that began at `end_offset` or later, after a truncation of the log."""
        while self._entries and self._entries[-1][1] >= end_offset:
            self._entries.pop()

    def truncate_from_start(self, start_offset: int) -> bool:
        """Remove epochs that ended at `start_offset` or before, after a deletion at the log's beginning; the
        epoch of `start_offset` then begins there. Return whether this changed the cache.
        """
        before = self._entries
        later = [entry for entry in before if entry[1] > start_offset]
        ended = before[: len(before) - len(later)]
        self._entries = [(ended[-1][0], start_offset), *later] if ended else later
        return self._entries != before
