"""The leader epochs of a log, in memory (Kafka: LeaderEpochFileCache). Nothing is on disk: the file is
`storage/meta/offset_checkpoints.py`'s.

The storage keeps one such cache for each partition, and replication decides by the same object. So it lies
below both. Threads: used under the partition's lock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from segstore.errors import InvalidArgumentError

DISTANCE = 1 << 16
"""How far above the largest known leader epoch a leader is passed that can't be asked: it begins one by
itself at each open behind a crash."""


class EpochEnd(NamedTuple):
    """A leader epoch and its end offset, the offset behind its last record (Kafka: EpochEndOffset)."""

    epoch: int
    end_offset: int


UNDEFINED = EpochEnd(-1, -1)
"""What is answered where nothing is known of an epoch (Kafka: UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET)."""


class LeaderEpochCache:
    """Under which leader epoch each offset of a log was written (Kafka: LeaderEpochFileCache; rules R3, R4).

    Epochs and their start offsets both rise.
    """

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._entries: list[tuple[int, int]] = []
        for epoch, start in entries:
            self.assign(epoch, start)

    def copy(self) -> LeaderEpochCache:
        """Return a copy, which is in memory only."""
        made = LeaderEpochCache()
        made._entries = self._entries.copy()
        return made

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """Return the pairs of epoch and start offset, rising."""
        return tuple(self._entries)

    @property
    def latest(self) -> int | None:
        """Return the newest epoch, None where there is none."""
        return self._entries[-1][0] if self._entries else None

    @property
    def current(self) -> int:
        """Return the epoch to write under: the newest, -1 where none is known."""
        return self._entries[-1][0] if self._entries else -1

    def assign(self, epoch: int, start_offset: int) -> None:
        """Let offsets from `start_offset` on have `epoch`; entries that contradict this are dropped (R3).

        Nothing changes where `epoch` is the newest and began no later. Raises InvalidArgumentError for
        numbers below 0.
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

        Below the first known epoch it is `epoch` itself, which ends where the first known one starts. It is
        UNDEFINED where `epoch` is above all known epochs, or is -1.
        """
        if epoch < 0 or not self._entries or epoch > self._entries[-1][0]:
            return UNDEFINED
        if epoch == self._entries[-1][0]:
            return EpochEnd(epoch, log_end_offset)
        higher = bisect_right(self._entries, epoch, key=lambda entry: entry[0])
        known = self._entries[higher - 1][0] if higher else epoch
        return EpochEnd(known, self._entries[higher][1])

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that began at `end_offset` or later, since the log was cut there."""
        while self._entries and self._entries[-1][1] >= end_offset:
            self._entries.pop()

    def truncate_from_start(self, start_offset: int) -> bool:
        """Forget epochs that ended at `start_offset` or before, since the log's beginning was deleted; the
        epoch of `start_offset` begins there. Returns whether this changes anything.
        """
        before = self._entries
        kept = [entry for entry in before if entry[1] > start_offset]
        gone = before[: len(before) - len(kept)]
        self._entries = [(gone[-1][0], start_offset), *kept] if gone else kept
        return self._entries != before
