"""The producer state of a partition's log: epochs, sequences and transactions, and the form of its snapshots.

The state is a function of the log (Kafka: ProducerStateManager): batches are taken in order of offset, one by
one, so that the state does not depend on how they were read, or whether they are being written. No batch is
refused here: what is in the log happened; `append_info` judges sequences and epochs before an append. Nothing
is written here; `state_manager` has the files. Threads: the holder of the partition's append token; the
functions for snapshots any.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from segstore._native import crc32c, lib
from segstore.errors import CorruptCheckpointError
from segstore.index.txn_index import AbortedTxn
from segstore.records.control import ABORT, COMMIT
from segstore.records.header import (
    CONTROL_FLAG,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
)

# --- producer snapshot -------------------------------------------------------------------------

# The content of <offset>.snapshot: what was known of every producer when the log ended at <offset>.
#
# Version int16 = 1, CRC-32C uint32 of all that follows, number of entries int32, then 46 bytes an entry,
# big-endian (org.apache.kafka.storage.internals.log.ProducerStateManager.readSnapshot; message
# ProducerSnapshot): producer id int64, epoch int16, last sequence int32, last offset int64, offset delta
# int32, timestamp int64, coordinator epoch int32, current transaction's first offset int64.

VERSION = 1

_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_FROM = 6


class SnapshotEntry(NamedTuple):
    """One producer in a snapshot. -1 stands for none; `offset_delta` is the last less the first offset of its
    last batch.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def format_snapshot(entries: Iterable[SnapshotEntry]) -> bytes:
    """Return the content of a snapshot file, in order of producer id."""
    packed = [_ENTRY.pack(*entry) for entry in sorted(entries)]
    body = struct.pack(">i", len(packed)) + b"".join(packed)
    return struct.pack(">hI", VERSION, crc32c(body)) + body


def parse_snapshot(data: bytes, where: str) -> list[SnapshotEntry]:
    """Return the entries of a snapshot. Raises CorruptCheckpointError, which names `where` (Kafka:
    CorruptSnapshotException).
    """
    if len(data) < _HEADER.size:
        raise CorruptCheckpointError(where, 0, f"{len(data)} bytes are no producer snapshot")
    version, crc, count = _HEADER.unpack_from(data)
    if version != VERSION:
        raise CorruptCheckpointError(where, 0, f"version {version} is unknown, {VERSION} is known")
    if crc32c(data[_CRC_FROM:]) != crc:
        raise CorruptCheckpointError(where, 0, "the CRC does not match the content")
    if len(data) != _HEADER.size + count * _ENTRY.size:
        raise CorruptCheckpointError(where, 0, f"{count} entries do not make {len(data)} bytes")
    entries = [SnapshotEntry(*fields) for fields in _ENTRY.iter_unpack(data[_HEADER.size :])]
    ids = {entry.producer_id for entry in entries}
    if len(ids) != count or min(ids, default=0) < 0:
        raise CorruptCheckpointError(where, 0, "a producer id is negative, or there twice")
    return entries


# --- producer state ------------------------------------------------------------

BATCHES_TO_RETAIN: int = lib.SEG_RETAINED
"""How many of a producer's last batches are kept, 5, by which a repeated batch is recognised."""

PRODUCER_ID_EXPIRATION_MS = 86_400_000
"""Kafka's default for producer.id.expiration.ms."""

SEQUENCES = 1 << 31
"""How many sequences there are: after the last, 2^31 - 1, a producer counts from 0 again."""

_NO_OFFSET = -1

ReadControl = Callable[[int], tuple[int, int]]
"""Gives the result of `parse_control` for the record of the control batch with this index."""


class BatchMetadata(NamedTuple):
    """A data batch of a producer; `offset_delta` is the last less the first offset. Timestamp in ms."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """Return the sequence of the batch's first record."""
        return (self.last_sequence - self.offset_delta) % SEQUENCES

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class _Header(NamedTuple):
    """One element of a BATCH array, field for field."""

    position: int
    base_offset: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    size: int
    leader_epoch: int
    base_sequence: int
    records: int
    crc: int
    attributes: int
    producer_epoch: int
    magic: int


class Ended(NamedTuple):
    """A transaction that has ended: the offsets of its first record and of its marker."""

    first_offset: int
    last_offset: int


class Saved(NamedTuple):
    """The state of one producer, to which `ProducerState.restore` goes back."""

    producer_id: int
    entry: ProducerEntry | None
    map_end_offset: int
    max_producer_id: int


@dataclass
class ProducerEntry:
    """What is known of one producer id (Kafka: ProducerStateEntry). -1 stands for none."""

    producer_epoch: int = NO_EPOCH
    coordinator_epoch: int = NO_EPOCH
    last_timestamp: int = NO_TIMESTAMP
    current_txn_first_offset: int = _NO_OFFSET
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=BATCHES_TO_RETAIN))
    """The last batches of the current epoch, oldest first."""
    appended_ms: int = field(default=NO_TIMESTAMP, compare=False)
    """The clock (ms) when this process last appended for the producer, which is not in the log."""

    @property
    def last_sequence(self) -> int:
        """Return the last sequence of the current epoch, -1 where there is none."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def copy(self) -> ProducerEntry:
        """Return another entry of the same content."""
        return ProducerEntry(
            self.producer_epoch,
            self.coordinator_epoch,
            self.last_timestamp,
            self.current_txn_first_offset,
            self.batches.copy(),
            self.appended_ms,
        )

    def begin_epoch(self, producer_epoch: int) -> None:
        """Begin an epoch, in which sequences count anew; nothing changes if it is the current one."""
        if self.producer_epoch != producer_epoch:
            self.batches.clear()
            self.producer_epoch = producer_epoch

    def add(self, producer_epoch: int, batch: BatchMetadata) -> None:
        """Take in a data batch."""
        self.begin_epoch(producer_epoch)
        self.batches.append(batch)
        self.last_timestamp = batch.timestamp


class ProducerState:
    """The producers of one partition, up to `map_end_offset` of its log."""

    def __init__(self, map_end_offset: int = 0) -> None:
        self.map_end_offset = map_end_offset
        """The offset behind the last batch that was taken in."""
        self.max_producer_id = NO_PRODUCER_ID
        """The largest producer id that was seen, -1 for none; ids that expired count."""
        self.producers: dict[int, ProducerEntry] = {}
        self.ended: list[Ended] | None = None
        """In a replica the transactions that have ended, as long as their markers are not below the high
        watermark (Kafka: ProducerStateManager.unreplicatedTxns)."""
        self._ongoing: dict[int, int] = {}

    @classmethod
    def load(cls, data: bytes, map_end_offset: int = 0, where: str = "snapshot") -> ProducerState:
        """Return the state in the bytes of the snapshot at `map_end_offset`. Raises CorruptCheckpointError,
        which names `where`.
        """
        state = cls(map_end_offset)
        for saved in parse_snapshot(data, where):
            entry = ProducerEntry(
                saved.producer_epoch, saved.coordinator_epoch, saved.timestamp, saved.current_txn_first_offset
            )
            if saved.last_offset >= 0:
                entry.batches.append(
                    BatchMetadata(saved.last_sequence, saved.last_offset, saved.offset_delta, saved.timestamp)
                )
            state.producers[saved.producer_id] = entry
            state.max_producer_id = max(state.max_producer_id, saved.producer_id)
            if saved.current_txn_first_offset >= 0:
                state._ongoing[saved.producer_id] = saved.current_txn_first_offset
        return state

    def dump(self) -> bytes:
        """Return the bytes of a snapshot at `map_end_offset`."""
        return format_snapshot(self.entries())

    def entries(self) -> list[SnapshotEntry]:
        """Return the entries of a snapshot; each has the last of its producer's batches."""
        none = BatchMetadata(NO_SEQUENCE, _NO_OFFSET, 0, NO_TIMESTAMP)
        saved = []
        for producer_id, e in self.producers.items():
            last = e.batches[-1] if e.batches else none
            saved.append(
                SnapshotEntry(
                    producer_id,
                    e.producer_epoch,
                    last.last_sequence,
                    last.last_offset,
                    last.offset_delta,
                    e.last_timestamp,
                    e.coordinator_epoch,
                    e.current_txn_first_offset,
                )
            )
        return saved

    @property
    def ongoing(self) -> dict[int, int]:
        """Return the first offset of each open transaction by producer id."""
        return dict(self._ongoing)

    @property
    def first_unstable_offset(self) -> int | None:
        """Return the first offset of the oldest open transaction, None without one; this is the last stable
        offset.
        """
        return min(self._ongoing.values()) if self._ongoing else None

    def stable_offset(self, start: int, end: int) -> int:
        """Return Kafka's last stable offset of a log from `start` to `end`."""
        return min(max(min(self._ongoing.values()), start), end) if self._ongoing else end

    def update(self, batches: NDArray[np.void], read_control: ReadControl) -> list[AbortedTxn]:
        """Take in batches of the log (a BATCH array, offsets rising); returns the transactions that they
        abort.

        Batches below `map_end_offset` are known and skipped. `read_control` is called for each control batch
        of a producer; its errors are raised, and the batches before are taken in then.
        """
        if not len(batches):
            return []
        aborted: list[AbortedTxn] = []
        for index in self._new(batches):
            batch = _Header._make(batches[index].item())
            if batch.attributes & CONTROL_FLAG:
                aborted += self._take_control(batch, index, read_control)
            else:
                self._take_data(batch)
            self.map_end_offset = batch.last_offset + 1
        self.map_end_offset = max(self.map_end_offset, int(batches["last_offset"][-1]) + 1)
        return aborted

    def _new(self, batches: NDArray[np.void]) -> list[int]:
        """Return the indexes of the batches with a producer id that are not in the state yet."""
        if len(batches) == 1:  # the usual append: arrays of one element are slow
            batch = batches[0]
            return [0] if batch["producer_id"] >= 0 and batch["base_offset"] >= self.map_end_offset else []
        taken = (batches["producer_id"] >= 0) & (batches["base_offset"] >= self.map_end_offset)
        found: list[int] = taken.nonzero()[0].tolist()
        return found

    def add_latest(self, producer_id: int, batches: Sequence[BatchMetadata], appended_ms: int) -> None:
        """Take in data batches of a known producer, in its current epoch and transaction: the last ones that
        it appended, as many as are retained at most. May be repeated.
        """
        entry, first = self.producers[producer_id], batches[0].last_offset
        known = (batch for batch in entry.batches if batch.last_offset < first)
        entry.batches = deque((*known, *batches), BATCHES_TO_RETAIN)
        entry.last_timestamp, entry.appended_ms = batches[-1].timestamp, appended_ms
        self.map_end_offset = max(self.map_end_offset, batches[-1].last_offset + 1)

    def save(self, producer_id: int) -> Saved:
        """Return the state to give to `restore` when batches of this producer alone, taken in from now on,
        are undone.
        """
        entry = self.producers.get(producer_id)
        kept = None if entry is None else entry.copy()
        return Saved(producer_id, kept, self.map_end_offset, self.max_producer_id)

    def restore(self, saved: Saved) -> None:
        """Go back to a saved state."""
        producer_id, entry, self.map_end_offset, self.max_producer_id = saved
        if self.ended is not None:
            self.ended = [ended for ended in self.ended if ended.last_offset < self.map_end_offset]
        self.producers.pop(producer_id, None)
        self._ongoing.pop(producer_id, None)
        if entry is not None:
            self.producers[producer_id] = entry.copy()
            if entry.current_txn_first_offset >= 0:
                self._ongoing[producer_id] = entry.current_txn_first_offset

    def _entry(self, producer_id: int) -> ProducerEntry:
        entry = self.producers.get(producer_id)
        if entry is None:
            entry = self.producers[producer_id] = ProducerEntry()
            self.max_producer_id = max(self.max_producer_id, producer_id)
        return entry

    def _take_data(self, batch: _Header) -> None:
        delta, sequence = batch.last_offset - batch.base_offset, batch.base_sequence
        last_sequence = (sequence + delta) % SEQUENCES if sequence >= 0 else NO_SEQUENCE
        entry = self._entry(batch.producer_id)
        entry.add(
            batch.producer_epoch, BatchMetadata(last_sequence, batch.last_offset, delta, batch.max_timestamp)
        )
        if batch.attributes & TRANSACTIONAL_FLAG and entry.current_txn_first_offset < 0:
            entry.current_txn_first_offset = self._ongoing[batch.producer_id] = batch.base_offset

    def _take_control(self, batch: _Header, index: int, read_control: ReadControl) -> list[AbortedTxn]:
        # Compaction leaves a control batch empty when its whole transaction is gone.
        kind, coordinator_epoch = read_control(index) if batch.records else (-1, NO_EPOCH)
        if kind not in (ABORT, COMMIT):
            return []
        producer_id = batch.producer_id
        entry = self._entry(producer_id)
        entry.begin_epoch(batch.producer_epoch)
        entry.coordinator_epoch = coordinator_epoch
        # A marker is alone in its batch, so the batch's stamp is its own.
        entry.last_timestamp = batch.max_timestamp
        entry.current_txn_first_offset = _NO_OFFSET
        first_offset = self._ongoing.pop(producer_id, None)
        if self.ended is not None and first_offset is not None:
            self.ended.append(Ended(first_offset, batch.base_offset))
        if kind == COMMIT or first_offset is None:
            return []
        offset = batch.base_offset
        stable = self.first_unstable_offset
        return [AbortedTxn(producer_id, first_offset, offset, offset + 1 if stable is None else stable)]

    def expire(self, now_ms: int, after_ms: int = PRODUCER_ID_EXPIRATION_MS) -> int:
        """Forget producers that wrote nothing for `after_ms` and have no open transaction; returns how many.

        The last record's timestamp counts (Kafka: ProducerStateManager.isProducerExpired), or the clock at an
        append of this process where that is later: a producer that writes old records now is not forgotten.
        """
        gone = [
            producer_id
            for producer_id, entry in self.producers.items()
            if entry.current_txn_first_offset < 0
            and now_ms - max(entry.last_timestamp, entry.appended_ms) >= after_ms
        ]
        for producer_id in gone:
            del self.producers[producer_id]
        return len(gone)
