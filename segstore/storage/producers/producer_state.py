"""`ProducerState`: the epochs, sequences and transactions of the producers of a partition's log. Also formats
and parses the snapshots of this state.

The state depends only on the log (Kafka: ProducerStateManager): batches are applied one by one in order of
offset, so that a replay of the log gives the same state as the appends did. No batch is refused here, because
`append_info` checks sequences and epochs before an append. The state is in a table in C
(`_native/producers.c`): C code applies its own appends to the table, and Python reads copies of the table's
entries. Nothing is written here; `state_manager` writes the files. Threads: the holder of the partition's
append token (the lock for appends), after the holder has paused the appends of the C code; any thread may
call the functions for snapshots.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from segstore._native import crc32c, ffi, held, lib
from segstore.errors import CorruptCheckpointError
from segstore.index.txn_index import AbortedTxn
from segstore.integers import INT64_MAX
from segstore.records.control import ABORT, COMMIT
from segstore.records.header import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
)

# --- producer snapshot -------------------------------------------------------------------------

# The content of <offset>.snapshot: the state of each producer when the log ended at <offset>.
#
# Version int16 = 1, CRC-32C uint32 of all that follows, number of entries int32, then 46 bytes per entry,
# big-endian (org.apache.kafka.storage.internals.log.ProducerStateManager.readSnapshot; message
# ProducerSnapshot): producer id int64, epoch int16, last sequence int32, last offset int64, offset delta
# int32, timestamp int64, coordinator epoch int32, current transaction's first offset int64.

VERSION = 1

_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_FROM = 6


class SnapshotEntry(NamedTuple):
    """One producer in a snapshot. `offset_delta` is the last offset of the producer's last batch, minus the
    first offset of that batch. -1 stands for a missing value.
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
    """Return the bytes of a snapshot file with these entries, in order of producer id."""
    packed = [_ENTRY.pack(*entry) for entry in sorted(entries)]
    body = struct.pack(">i", len(packed)) + b"".join(packed)
    return struct.pack(">hI", VERSION, crc32c(body)) + body


def parse_snapshot(data: bytes, where: str) -> list[SnapshotEntry]:
    """Return the entries of a snapshot. Raises CorruptCheckpointError, with `where` as the file's name
    (Kafka: CorruptSnapshotException).
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
"""The number of a producer's last batches, 5, that are kept to recognise a repeated batch."""

PRODUCER_ID_EXPIRATION_MS = 86_400_000
"""Kafka's default for producer.id.expiration.ms."""

SEQUENCES = 1 << 31
"""The number of sequences. After the largest sequence, 2^31 - 1, a producer counts from 0 again."""

_NO_OFFSET = -1

ReadControl = Callable[[int], tuple[int, int]]
"""A function that gets the index of a control batch, and returns the result of `parse_control` for this
batch.
"""


class BatchMetadata(NamedTuple):
    """A data batch of a producer. `offset_delta` is the batch's last offset minus its first offset;
    `timestamp` is in ms.
    """

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


class CompletedTxn(NamedTuple):
    """A committed or aborted transaction: the offsets of its first record and of its transaction marker."""

    first_offset: int
    last_offset: int


class Saved(NamedTuple):
    """The saved state of one producer, for `ProducerState.restore`. `entry` is a `seg_producer`; None if the
    producer was not known.
    """

    producer_id: int
    entry: Any
    map_end_offset: int
    max_producer_id: int


@dataclass(frozen=True)
class ProducerEntry:
    """The state of one producer id (Kafka: ProducerStateEntry). -1 stands for a missing value."""

    producer_epoch: int
    coordinator_epoch: int
    last_timestamp: int
    current_txn_first_offset: int
    batches: tuple[BatchMetadata, ...]
    """The last batches of the current epoch, oldest first."""
    appended_ms: int = field(default=NO_TIMESTAMP, compare=False)
    """The time (ms) when this process last appended a batch of the producer. Neither the log nor a snapshot
    has this time.
    """

    @classmethod
    def of(cls, c: Any) -> ProducerEntry:
        """Return the entry with the content of a `seg_producer`."""
        kept = tuple(
            BatchMetadata(b.last_sequence, b.last_offset, b.offset_delta, b.timestamp)
            for b in ffi.unpack(c.batches, c.kept)
        )
        return cls(
            c.producer_epoch, c.coordinator_epoch, c.last_timestamp, c.txn_first_offset, kept, c.appended_ms
        )

    @property
    def last_sequence(self) -> int:
        """Return the last sequence of the current epoch; -1 if the epoch has no batch."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class ProducerTable(Mapping[int, ProducerEntry]):
    """The entries of a `seg_producers` by producer id, in order of id. Each access returns a copy of an
    entry.
    """

    __slots__ = ("_c",)

    def __init__(self, c: Any) -> None:
        self._c = c

    def __getitem__(self, producer_id: int) -> ProducerEntry:
        found = ffi.new("seg_producer *")
        if not lib.seg_producers_find(self._c, producer_id, found):
            raise KeyError(producer_id)
        return ProducerEntry.of(found)

    def __iter__(self) -> Iterator[int]:
        found = ffi.new("seg_producer[]", self._c.count)
        lib.seg_producers_copy(self._c, found)
        return iter([each.producer_id for each in found])

    def __len__(self) -> int:
        return int(self._c.count)


class ProducerState:
    """The state of one partition's producers after all batches below `map_end_offset`. `c` is the table with
    the state, a `seg_producers`.
    """

    def __init__(self, map_end_offset: int = 0) -> None:
        self.c = ffi.gc(ffi.new("seg_producers *"), lib.seg_producers_free)
        self.c.map_end_offset, self.c.max_producer_id = map_end_offset, NO_PRODUCER_ID
        self.c.seed = int.from_bytes(os.urandom(8), "little")
        self.producers = ProducerTable(self.c)
        self.ended: list[CompletedTxn] | None = None
        """In a replica, the completed transactions whose transaction markers are at or above the high
        watermark (Kafka: ProducerStateManager.unreplicatedTxns). None if the partition is no replica.
        """

    @classmethod
    def load(cls, data: bytes, map_end_offset: int = 0, where: str = "snapshot") -> ProducerState:
        """Return the state in the bytes `data` of the snapshot at `map_end_offset`. Raises
        CorruptCheckpointError, with `where` as the file's name.
        """
        state, entry = cls(map_end_offset), ffi.new("seg_producer *")
        entry.appended_ms = NO_TIMESTAMP
        for saved in parse_snapshot(data, where):
            entry.producer_id, entry.producer_epoch = saved.producer_id, saved.producer_epoch
            entry.coordinator_epoch, entry.last_timestamp = saved.coordinator_epoch, saved.timestamp
            entry.txn_first_offset = saved.current_txn_first_offset
            entry.kept = saved.last_offset >= 0
            last = entry.batches[0]
            last.last_sequence, last.last_offset = saved.last_sequence, saved.last_offset
            last.offset_delta, last.timestamp = saved.offset_delta, saved.timestamp
            _checked(lib.seg_producers_put(state.c, entry))
        return state

    @property
    def map_end_offset(self) -> int:
        """Return the offset after the last batch that was applied."""
        return int(self.c.map_end_offset)

    @property
    def max_producer_id(self) -> int:
        """Return the largest producer id that was in this state, also of expired producers; -1 if there was
        none.
        """
        return int(self.c.max_producer_id)

    def dump(self) -> bytes:
        """Return the bytes of a snapshot at `map_end_offset`."""
        return format_snapshot(self.entries())

    def entries(self) -> list[SnapshotEntry]:
        """Return the entries of a snapshot at `map_end_offset`: one entry for each producer, with the
        producer's last batch.
        """
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
        """Return the first offset of each open transaction, by producer id."""
        c = self.c
        return {
            each.producer_id: each.first_offset for each in (ffi.unpack(c.txns, c.open) if c.open else ())
        }

    @property
    def first_unstable_offset(self) -> int | None:
        """Return the first offset of the oldest open transaction; None if no transaction is open."""
        return int(self.c.txns[0].first_offset) if self.c.open else None

    def stable_offset(self, start: int, end: int) -> int:
        """Return the last stable offset of a log from the offset `start` to `end` (Kafka: LSO)."""
        unstable = self.first_unstable_offset
        return end if unstable is None else min(max(unstable, start), end)

    def update(self, batches: Any, read_control: ReadControl, now: int = NO_TIMESTAMP) -> list[AbortedTxn]:
        """Apply batches of the log, and return the transactions that they abort. `batches` is the memory of
        an array of `seg_batch` with rising offsets. `now` is the present time (ms) if this process appends
        the batches, else NO_TIMESTAMP.

        Batches below `map_end_offset` are skipped. `read_control` is called for each control batch of a
        producer. If `read_control` raises an error, the batches before this control batch stay applied.
        """
        aborted: list[AbortedTxn] = []
        headers = held("seg_batch[]", batches)
        n, at = len(headers), 0
        while at < n:
            at = lib.seg_producers_take(self.c, headers, n, at, now)
            if _checked(at) < n:
                aborted += self._take_control(headers + at, at, read_control, now)
                self.c.map_end_offset = headers[at].last_offset + 1
                at += 1
        return aborted

    def save(self, producer_id: int) -> Saved:
        """Return the state of a producer, for `restore`. Between `save` and `restore` only batches of
        producers with a saved state may be applied.
        """
        return Saved(producer_id, self.find(producer_id), self.map_end_offset, self.max_producer_id)

    def find(self, producer_id: int) -> Any:
        """Return a copy of a producer's `seg_producer`; None if the producer is not known."""
        entry = ffi.new("seg_producer *")
        return entry if lib.seg_producers_find(self.c, producer_id, entry) else None

    def restore(self, saved: Saved) -> None:
        """Go back to a saved state: of the producer's entry, `map_end_offset`, `max_producer_id` and `ended`.
        May be repeated.
        """
        producer_id, entry, map_end_offset, max_producer_id = saved
        if entry is None:
            lib.seg_producers_remove(self.c, producer_id)
        else:
            _checked(lib.seg_producers_put(self.c, entry))
        self.c.map_end_offset, self.c.max_producer_id = map_end_offset, max_producer_id
        if self.ended is not None:
            self.ended = [ended for ended in self.ended if ended.last_offset < map_end_offset]

    def _take_control(self, batch: Any, index: int, read_control: ReadControl, now: int) -> list[AbortedTxn]:
        # A control batch has no record if compaction has removed all records of the transaction.
        kind, coordinator_epoch = read_control(index) if batch.count else (-1, NO_EPOCH)
        if kind not in (ABORT, COMMIT):
            return []
        first_offset = _checked(lib.seg_producers_end(self.c, batch, coordinator_epoch, now))
        offset, producer_id = batch.base_offset, batch.producer_id
        if self.ended is not None and first_offset >= 0:
            self.ended.append(CompletedTxn(first_offset, offset))
        if kind == COMMIT or first_offset < 0:
            return []
        stable = self.first_unstable_offset
        return [AbortedTxn(producer_id, first_offset, offset, offset + 1 if stable is None else stable)]

    def expire(self, now_ms: int, after_ms: int = PRODUCER_ID_EXPIRATION_MS) -> int:
        """Forget the producers without an open transaction that have written nothing for `after_ms`; return
        the number of forgotten producers.

        The time of a producer's last write is the timestamp of its last record (Kafka:
        ProducerStateManager.isProducerExpired), or the time of its last append in this process if that is
        later, so that a producer that writes old timestamps now is not forgotten.
        """
        return int(lib.seg_producers_expire(self.c, max(now_ms - after_ms, -INT64_MAX)))


def _checked(code: int) -> int:
    """Return `code`, the result of a C function that changes the table; raise MemoryError if the function had
    no memory to apply all batches.
    """
    if code < _NO_OFFSET:
        raise MemoryError("no memory for another producer")
    return code
