"""`ReplicaLog`: the offsets and leader epochs of a replica's log, without its records (Kafka: UnifiedLog).

The epoch cache may be the object that the storage uses for the same log. If so, the storage and this package
both make each change of the cache, and the second change has no effect.
"""

from __future__ import annotations

from segstore.leader_epochs import EpochEnd, LeaderEpochCache


class ReplicaLog:
    """The offsets of a log: 0 <= `start_offset` <= `high_watermark` <= `end_offset` (P7)."""

    __slots__ = ("end_offset", "epochs", "high_watermark", "start_offset")

    def __init__(
        self,
        epochs: LeaderEpochCache,
        start_offset: int = 0,
        end_offset: int = 0,
        high_watermark: int = 0,
    ) -> None:
        self.epochs, self.start_offset, self.end_offset = epochs, start_offset, end_offset
        self.high_watermark = min(max(high_watermark, start_offset), end_offset)

    def copy(self) -> ReplicaLog:
        """Return a deep copy."""
        return ReplicaLog(self.epochs.copy(), self.start_offset, self.end_offset, self.high_watermark)

    def end_offset_for(self, epoch: int) -> EpochEnd:
        """Return the largest known epoch that is not above `epoch`, and the end offset of that epoch in this
        log (R4).
        """
        return self.epochs.end_offset_for(epoch, self.end_offset)

    def appended(self, end_offset: int, epochs: tuple[tuple[int, int], ...] = ()) -> None:
        """Record that batches were appended, and that the log ends at `end_offset` now. `epochs` has (leader
        epoch, base offset) of each batch with which a new epoch begins (R3).
        """
        for epoch, start_offset in epochs:
            # Batches that were upgraded from magic 0 or 1 have the epoch -1.
            if epoch >= 0 and start_offset < end_offset:
                self.epochs.assign(epoch, start_offset)
        self.end_offset = end_offset

    def gone_on(self, offset: int, epoch: int) -> None:
        """Record that the log end offset was moved to `offset`, at which `epoch` begins (R41)."""
        if epoch >= 0:
            self.epochs.assign(epoch, offset)
        self.end_offset = offset

    def truncated(self, target: int, end_offset: int) -> None:
        """Record that the log was truncated to `target`, and ends at `end_offset` now (R5). Epochs that begin
        at the lower of these two offsets, or above it, are removed, even if no batch was removed.
        """
        self.epochs.truncate_from_end(min(target, end_offset))
        self.end_offset = end_offset
        self.start_offset = min(self.start_offset, end_offset)
        self.high_watermark = min(self.high_watermark, end_offset)

    def started_over(self, offset: int) -> None:
        """Record that the log was emptied, and that it begins and ends at `offset` now (R6)."""
        self.epochs.truncate_from_end(0)
        self.start_offset = self.end_offset = self.high_watermark = offset
