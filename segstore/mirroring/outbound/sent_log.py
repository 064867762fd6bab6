"""`SentLog`: a partition that is mirrored to a cluster, with the log end offset at the target. Nothing is on
disk. Threads: only the sender of the partition's leader changes a SentLog; any thread may read it.
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
    """A partition at the target, as a key of dicts."""

    topic: str
    topic_id: str
    partition: int


class SentLog:
    """A mirrored partition. `next_offset` is the target's log end offset, or None if the target must be asked
    for it. `error` is the error because of which nothing is sent now, or None. `refused` is the error because
    of which nothing is sent any more, or None.
    """

    def __init__(self, part: TargetPartition, log: PartitionLog, topic_id: str, max_bytes: int) -> None:
        """`topic_id` is the topic's id in this store. `max_bytes` is `max.message.bytes` at the target."""
        self.part, self.log, self.max_bytes = part, log, max_bytes
        self.next_offset: int | None = None
        self.error: Exception | None = None
        self.refused: Exception | None = None
        self.not_before = 0.0
        self.misses = 0
        """How many batches, one after another, the target has refused because of their sequence numbers."""
        self._producer = producer_id(topic_id, part.partition)

    def __repr__(self) -> str:
        return f"{self.part.topic}-{self.part.partition}"

    @property
    def lag(self) -> Lag:
        """Return the lag of the target: a number of records, or -1 before the target's first answer. Bytes
        and ms are always -1.
        """
        at = self.next_offset
        return Lag(-1 if at is None else max(self.log.high_watermark - at, 0), -1, -1)

    def delay(self, seconds: float, error: Exception) -> None:
        """Record `error`, and send nothing for `seconds`."""
        self.not_before, self.error = time.monotonic() + seconds, error

    def refuse(self, error: Exception) -> None:
        """Set a final error, after which nothing more is sent."""
        self.error = self.refused = error

    # --- sending ----------------------------------------------------------------------------------

    def take(self) -> ReadyBatch | None:
        """Return the batch to send next, or None if the target has all records, or must be asked for its log
        end offset. Raises UnequalOffsetsError, RecordTooLargeError, CorruptRecordError, StorageError,
        StoreClosedError.
        """
        at = self.next_offset
        if at is None or at >= self.log.high_watermark:
            return None
        if at < self.log.start_offset:
            raise self._hole(at)
        data = self.log.stored(at, max(_READ, self.max_bytes))
        return ready_batch(data, at, self._producer, self.max_bytes, repr(self)) if data else None

    def sent(self, batch: ReadyBatch, base_offset: int) -> None:
        """Record that the target has appended a batch at `base_offset`. Raises UnequalOffsetsError if the
        batch has another base offset in this log.
        """
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
        """Return the range of offsets that this log and the target's log have in common. The target's log has
        the offsets from `start` to `end` - 1. Raises UnequalOffsetsError if the target's log ends above this
        log's high watermark, or below its log start.
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
        """Compare records that were fetched from the target, from `offset` on, with the records of this log.
        Return the offset after the last fetched record. Raises CorruptRecordError, and UnequalOffsetsError if
        records differ.
        """
        batches, _ = scan(fetched)
        target_records = decode(fetched, batches, f"{self!r} at the target", from_offset=offset)
        own: dict[int, Record] = {}
        at = offset
        while len(target_records) and at < target_records.next_offset:
            records = self.log.read(at)
            own.update((each.offset, each) for each in records)
            at = records.next_offset
        control = any(batches["attributes"] & 0x20)
        other = next((each.offset for each in target_records if own.get(each.offset) != each), None)
        if other is not None or control:
            at = int(batches["base_offset"][0]) if other is None else other
            raise UnequalOffsetsError(f"{self!r}: the target has another record at offset {at}")
        return target_records.next_offset
