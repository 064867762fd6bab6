"""What the core knows of a replica's own log: its offsets and leader epochs (Kafka: UnifiedLog's).

The records are not here. The epoch cache may be the one that the storage uses for the same log: whatever both
tell it has the same outcome once as twice.
"""

from __future__ import annotations

from segstore.leader_epochs import EpochEnd, LeaderEpochCache


class ReplicaLog:
    """Offsets of a log: 0 <= `start_offset` <= `high_watermark` <= `end_offset` (P7)."""

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
        """Return a copy that shares nothing."""
        return ReplicaLog(self.epochs.copy(), self.start_offset, self.end_offset, self.high_watermark)

    def end_offset_for(self, epoch: int) -> EpochEnd:
        """Return what `LeaderEpochCache.end_offset_for` says of this log (R4)."""
        return self.epochs.end_offset_for(epoch, self.end_offset)

    def appended(self, end_offset: int, epochs: tuple[tuple[int, int], ...] = ()) -> None:
        """Note that batches were appended up to `end_offset`; `epochs` as in `Fetched` (R3). Batches that
        were brought up from magic 0 and 1 have the epoch -1, which begins nowhere.
        """
        for epoch, start_offset in epochs:
            if epoch >= 0 and start_offset < end_offset:
                self.epochs.assign(epoch, start_offset)
        self.end_offset = end_offset

    def gone_on(self, offset: int, epoch: int) -> None:
        """Note that the log ends at `offset`, with no batch right before, where `epoch` begins (R41)."""
        if epoch >= 0:
            self.epochs.assign(epoch, offset)
        self.end_offset = offset

    def truncated(self, target: int, end_offset: int) -> None:
        """Note that the log was cut at `target`, and ends at `end_offset` now (R5). Epochs that begin there
        go, also where nothing was cut.
        """
        self.epochs.truncate_from_end(min(target, end_offset))
        self.end_offset = end_offset
        self.start_offset = min(self.start_offset, end_offset)
        self.high_watermark = min(self.high_watermark, end_offset)

    def started_over(self, offset: int) -> None:
        """Note that the log is empty, and begins and ends at `offset` (R6)."""
        self.epochs.truncate_from_end(0)
        self.start_offset = self.end_offset = self.high_watermark = offset
