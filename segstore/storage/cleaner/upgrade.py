"""Upgrades a partition: messages of magic 0 and 1 become record batches of magic 2.

Offsets, keys, values, timestamps, and the codec of each wrapper (a compressed message that contains messages)
stay. Kafka has no such upgrade: it converts messages when it sends them. Each segment with old messages is
rewritten; its batches of magic 2 are copied. The new segment is compared with the old segment, and replaces
it as in a compaction (`swap`). Threads: one cleaning or upgrade of a partition at a time; other threads
append and read at the same time.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from segstore import names
from segstore._native import held, lib
from segstore.arrays import np
from segstore.errors import CorruptRecordError, StorageError
from segstore.index import txn_index
from segstore.index.sparse import MOST_RELATIVE
from segstore.index.txn_index import AbortedTxn
from segstore.records.header import CODEC_MASK, MAGIC
from segstore.storage.cleaner.offset_map import checked
from segstore.storage.cleaner.retain import levels
from segstore.storage.cleaner.rewrite import Levels, Output, compressed
from segstore.storage.cleaner.segment_reader import CleanerPiece, pieces
from segstore.storage.cleaner.swap import check_settled, remove_strays, swap, undone_on_error
from segstore.storage.cleaner.throttle import CleaningStopped, Throttler
from segstore.storage.segment.batch_scan import BAD, walk

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from segstore.config import StoreConfig
    from segstore.records import Records
    from segstore.records.lazy_columns import ByteColumn
    from segstore.storage.log.partition import Partition
    from segstore.storage.segment.segment import Segment


class UpgradedSegment(NamedTuple):
    """The result of the upgrade of a segment: its number of records, and the size of its log before and
    after.
    """

    records: int
    bytes_before: int
    bytes_after: int


def upgrade(
    partition: Partition,
    config: StoreConfig,
    throttle: Throttler,
    swapped: Callable[[UpgradedSegment], object],
    flushed: Callable[[], object] = lambda: None,
) -> None:
    """Rewrite all segments with messages of magic 0 or 1. If the active segment has any, it is sealed first.

    `swapped` is called with the result of each segment. `flushed` is called once, before the first segment is
    replaced, and must make the recovery point durable. A segment beyond the high watermark of a replica is
    skipped. Raises CleaningStopped, StoreClosedError, CorruptRecordError, StorageError, OSError: segments
    that were upgraded before the error stay upgraded.
    """
    check_settled(partition)
    found = []
    for segment in partition.view.segments:
        with _unless_removed(partition, segment):
            if holds_old(segment, throttle):
                found.append(segment)
    if not found:
        return
    if found[-1] is partition.segments[-1]:
        partition.roll()
    # Sync the log before a swap: without this sync, a crash after the swap might lose records that follow the
    # new segment.
    partition.flusher.flush(partition.view.end_offset)
    flushed()
    for segment in found:
        with _unless_removed(partition, segment):
            if segment in partition.view.segments[:-1]:
                swapped(_upgraded(partition, segment, config.log_cleaner_io_buffer_size, throttle))


@contextmanager
def _unless_removed(partition: Partition, segment: Segment) -> Iterator[None]:
    """A context for a block. Errors of the block are ignored if retention has removed the segment."""
    try:
        yield
    except (CleaningStopped, CorruptRecordError, OSError):
        if segment in partition.view.segments:
            raise


def holds_old(segment: Segment, throttle: Throttler) -> bool:
    """Return whether a segment has messages of magic 0 or 1. Raises CorruptRecordError if damage may hide
    such messages.
    """
    files, handle, end, at = segment.pool.files, segment.handle, segment.size, 0
    offset, status = segment.base_offset, lib.SEG_END
    for step in walk(files, handle, 0, end, check_crcs=False, sparse=True, least=offset):
        if (step.batches["magic"] != MAGIC).any():
            return True
        throttle(len(step.data))
        at, status = step.stop.position, step.stop.status
        offset = max(offset, step.stop.last_offset + 1)
    if at < end:
        raise CorruptRecordError(segment.path, at, offset, BAD.get(status, "the file was cut"))
    return False


def _upgraded(partition: Partition, old: Segment, chunk: int, throttle: Throttler) -> UpgradedSegment:
    remove_strays(partition)
    output = Output(partition, old.base_offset, MOST_RELATIVE)
    with undone_on_error(partition, lambda: output.segments):
        before = RecordDigest()
        for piece in pieces(old, 0, chunk, throttle):
            before.add(piece.records)
            data, batches = _as_it_was_compressed(piece, levels(partition.config))
            throttle(len(data))
            output.add(data, batches)
        new = output.finish(_aborted(old), old)
        _check(new, before, chunk, throttle)
        swap(partition, [old], new)
    return UpgradedSegment(before.count, old.size, sum(segment.size for segment in new))


def _as_it_was_compressed(piece: CleanerPiece, level: Levels) -> tuple[memoryview, NDArray[np.void]]:
    """Return the data and the headers of a piece's batches, each compressed as in the segment."""
    batches = piece.batches.copy()
    start = int(batches["position"][0]) - piece.position
    data = memoryview(piece.data)[start : start + int(batches["size"].sum(dtype=np.int64))]
    batches["position"] -= batches["position"][0]
    plain = piece.codecs != batches["attributes"] & CODEC_MASK
    batches["attributes"] |= piece.codecs
    return compressed(data, batches, plain, level) if plain.any() else (data, batches)


def _aborted(segment: Segment) -> list[AbortedTxn]:
    files, path = segment.pool.files, segment.file(names.TXN_INDEX)
    if not files.exists(path):
        return []
    entries = txn_index.parse(files.read_file(path), segment.base_offset)
    return [AbortedTxn(*fields[1:]) for fields in entries.tolist()]


# --- reading once more -------------------------------------------------------------------------


class RecordDigest:
    """The number of records, and a digest of each of their columns. How the records are grouped into batches
    makes no difference. Record headers are left out, because old messages have none.
    """

    def __init__(self) -> None:
        self.count = 0
        self._digests = [hashlib.blake2b(digest_size=16) for _ in range(7)]

    def add(self, records: Records) -> None:
        """Add the next records."""
        keys, values = records.keys, records.values
        columns = records.offsets, records.timestamps, records.timestamp_types, keys.lengths, values.lengths
        said = [*map(np.ascontiguousarray, columns), _joined(keys), _joined(values)]
        for digest, column in zip(self._digests, said, strict=True):
            digest.update(column.data)
        self.count += len(records)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RecordDigest):
            return NotImplemented
        same = zip(self._digests, other._digests, strict=True)
        return self.count == other.count and all(a.digest() == b.digest() for a, b in same)

    __hash__ = None  # type: ignore[assignment]


def _joined(column: ByteColumn) -> NDArray[np.uint8]:
    at, lengths = np.ascontiguousarray(column.at), np.ascontiguousarray(column.lengths)
    out = np.empty(int(lengths[lengths > 0].sum()), np.uint8)
    ends = np.empty(len(lengths) + 1, np.int64)
    checked(
        lib.seg_gather(
            column.arena, len(column.arena), held("int64_t *", at), held("int64_t *", lengths), len(lengths),
            1, held("uint8_t *", out), len(out), held("int64_t *", ends),
        )
    )  # fmt: skip
    return out


def _check(new: list[Segment], before: RecordDigest, chunk: int, throttle: Throttler) -> None:
    """Compare the records of the new segments with `before`, the digest of the old segment's records. Raises
    CorruptRecordError, and StorageError if the records differ.
    """
    after, old = RecordDigest(), False
    for segment in new:
        for piece in pieces(segment, 0, chunk, throttle):
            after.add(piece.records)
            old = old or piece.old
    if after != before or old:
        raise StorageError(errno.EIO, "The upgraded segment reads otherwise than the old one", new[0].path)
