"""`SentLog`: a partition that is mirrored to a cluster, and how far. Nothing is on disk: the target's log end
offset says where a mirror goes on. Threads: that of the leader's sender; others read.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from segstore.errors import UnequalOffsetsError
from segstore.mirroring.outbound.ready_batch import ReadyBatch, producer_id, ready_batch
from segstore.records import Record, decode, scan
from segstore.replica_fetcher.source_end import Lag
from segstore.storage.store.partition_log import PartitionLog

_READ = 1 << 20


class TargetPartition(NamedTuple):
    """A partition of the target."""

    topic: str
    topic_id: str
    partition: int


class SentLog:
    """`next_offset` is the first that the target lacks; None where it has to be asked for. `error` says why
    nothing is sent now, `refused` why nothing ever will.
    """

    def __init__(self, part: TargetPartition, log: PartitionLog, topic_id: str, max_bytes: int) -> None:
        """`topic_id` is that of the topic here, `max_bytes` the target's `max.message.bytes`."""
        self.part, self.log, self.max_bytes = part, log, max_bytes
        self.next_offset: int | None = None
        self.error: Exception | None = None
        self.refused: Exception | None = None
        self.not_before = 0.0
        self.misses = 0
        """How often in a row the target was not where it was said to be."""
        self._producer = producer_id(topic_id, part.partition)

    def __repr__(self) -> str:
        return f"{self.part.topic}-{self.part.partition}"

    @property
    def lag(self) -> Lag:
        """Return how far the target is behind: -1 where it was not asked yet. Bytes and ms are not known."""
        at = self.next_offset
        return Lag(-1 if at is None else max(self.log.high_watermark - at, 0), -1, -1)

    def delay(self, seconds: float, error: Exception) -> None:
        """Send nothing for a while."""
        self.not_before, self.error = time.monotonic() + seconds, error

    def refuse(self, error: Exception) -> None:
        """Send nothing any more."""
        self.error = self.refused = error

    # --- sending ----------------------------------------------------------------------------------

    def take(self) -> ReadyBatch | None:
        """Return what is sent next, None where the target has all. Raises UnequalOffsetsError,
        RecordTooLargeError, CorruptRecordError, StorageError, StoreClosedError.
        """
        at = self.next_offset
        if at is None or at >= self.log.high_watermark:
            return None
        if at < self.log.start_offset:
            raise self._hole(at)
        data = self.log.stored(at, max(_READ, self.max_bytes))
        return ready_batch(data, at, self._producer, self.max_bytes, repr(self)) if data else None

    def sent(self, batch: ReadyBatch, base_offset: int) -> None:
        """Note what the target has appended, or had appended before. Raises UnequalOffsetsError."""
        if base_offset != batch.first:
            raise UnequalOffsetsError(
                f"{self!r}: the target gave the record with offset {batch.first} the offset {base_offset}:"
                " somebody else writes to it"
            )
        self.next_offset, self.error, self.misses = batch.next_offset, None, 0

    def _hole(self, end: int) -> UnequalOffsetsError:
        return UnequalOffsetsError(
            f"{self!r}: the target's log ends at offset {end}, and the log here begins at"
            f" {self.log.start_offset}: a producer can't leave offsets out. docs/moving-to-kafka.md says how"
            " the log is moved as it is"
        )

    # --- beginning --------------------------------------------------------------------------------

    def begin(self, start: int, end: int) -> range:
        """Return which offsets of the target, whose log begins and ends there, are to be compared with the
        log here before anything is sent. Raises UnequalOffsetsError.
        """
        if end > self.log.high_watermark:
            raise UnequalOffsetsError(
                f"{self!r}: the target's log ends at offset {end}, and the log here at"
                f" {self.log.high_watermark}: the target has other records"
            )
        if end < self.log.start_offset:
            raise self._hole(end)
        return range(max(start, self.log.start_offset), end)

    def compare(self, fetched: bytes, offset: int) -> int:
        """Compare records of the target, from `offset` on, with those here; return the offset behind them.
        Raises UnequalOffsetsError, CorruptRecordError.
        """
        batches, _ = scan(fetched)
        theirs = decode(fetched, batches, f"{self!r} at the target", from_offset=offset)
        ours: dict[int, Record] = {}
        at = offset
        while len(theirs) and at < theirs.next_offset:
            records = self.log.read(at)
            ours.update((each.offset, each) for each in records)
            at = records.next_offset
        control = any(batches["attributes"] & 0x20)
        other = next((each.offset for each in theirs if ours.get(each.offset) != each), None)
        if other is not None or control:
            at = int(batches["base_offset"][0]) if other is None else other
            raise UnequalOffsetsError(f"{self!r}: the target has another record at offset {at}")
        return theirs.next_offset
