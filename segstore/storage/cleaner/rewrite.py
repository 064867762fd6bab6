"""Rewrites the batches of segments, and leaves out superseded records (Kafka: Cleaner.cleanInto).

The new files of a group of segments (the log, both indexes, the .txnindex) have names that end in `.cleaned`.
Threads: the cleaning thread; no other thread uses these files before the swap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from segstore import names
from segstore._native import ffi, held, lib
from segstore.arrays import np
from segstore.files import Handle
from segstore.index import IndexBuilder, SealedOffsetIndex, SealedTimeIndex, txn_index
from segstore.index.txn_index import AbortedTxn
from segstore.records import HEADER_SIZE, batch_ptr, batch_type
from segstore.records.codecs import compress
from segstore.records.header import CODEC_MASK
from segstore.storage.cleaner.offset_map import OffsetMap, checked, columns
from segstore.storage.cleaner.retain import Policy
from segstore.storage.cleaner.segment_reader import CleanerPiece, SegmentReader, pieces
from segstore.storage.cleaner.throttle import Throttler
from segstore.storage.segment.segment import Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from segstore.storage.log.partition import Partition


# --- output ------------------------------------------------------------------------------------


class _Growing:
    """One new segment while it is written."""

    def __init__(self, partition: Partition, base_offset: int) -> None:
        pool, interval = partition.context.pool, partition.config.index_interval_bytes
        self.segment = segment = Segment(
            pool, partition.directory, base_offset, 0, writable=False, interval=interval
        )
        self._partition, self._files = partition, pool.files
        with partition.names_held():  # `names_held` raises an error if the topic was deleted
            self.handle: Handle = self._create(names.LOG)
        self._builder = IndexBuilder(segment.base_offset, segment.interval)
        self._offsets, self._times = bytearray(), bytearray()

    def _create(self, suffix: str) -> Handle:
        return self._files.open_anew(self.segment.file(suffix + names.CLEANED))

    def add(self, data: Buffer, batches: NDArray[np.void]) -> None:
        segment = self.segment
        batches["position"] += segment.size - batches["position"][0]
        self._files.pwrite(self.handle, data, segment.size)
        offsets, times = self._builder.add(batches)
        self._offsets += offsets
        self._times += times
        segment.size += len(memoryview(data))

    def finish(self, aborted: Sequence[AbortedTxn], modified: int) -> None:
        """Make the segment durable under its `.cleaned` names, and readable through its open file. `modified`
        (ns since the epoch) becomes the files' modification time. If no record has a timestamp, the
        segment's age is computed from this time.
        """
        files = self._files
        self._times += self._builder.last_time_entry()
        offsets, times = bytes(self._offsets), bytes(self._times)
        contents = {names.INDEX: offsets, names.TIME_INDEX: times}
        if aborted:
            contents[names.TXN_INDEX] = txn_index.format_entries(aborted)
        files.set_modified(self.handle, modified)
        files.sync(self.handle)
        with self._partition.names_held():
            for suffix, content in contents.items():
                with self._create(suffix) as handle:
                    files.pwrite(handle, content, 0)
                    files.set_modified(handle, modified)
                    files.sync(handle)
        self.segment.hold(self.handle, (SealedOffsetIndex.of(offsets), SealedTimeIndex.of(times)))


class Output:
    """The new segments of a group: one segment, or several segments if one would exceed `most` bytes."""

    def __init__(self, partition: Partition, base_offset: int, most: int) -> None:
        """Begin the first segment. Raises OSError, StoreClosedError."""
        self._partition, self._most = partition, most
        self._growing = [_Growing(partition, base_offset)]

    @property
    def segments(self) -> list[Segment]:
        return [one.segment for one in self._growing]

    def add(self, data: memoryview, batches: NDArray[np.void]) -> None:
        """Append batches to the last new segment, or to further new segments if they don't fit. `data` has
        the bytes of the batches, and `batches` their headers. Raises OSError.
        """
        while len(batches):
            one = self._growing[-1]
            ends = batches["size"].cumsum(dtype=np.int64)
            n = int(ends.searchsorted(self._most - one.segment.size, side="right"))
            if not n and one.segment.size:
                self._growing.append(_Growing(self._partition, int(batches["base_offset"][0])))
                continue
            n = max(n, 1)
            size = int(ends[n - 1])
            one.add(data[:size], batches[:n])
            data, batches = data[size:], batches[n:]

    def finish(self, aborted: Sequence[AbortedTxn], last: Segment) -> list[Segment]:
        """Make all new segments durable, and return them. The new files get the modification time of `last`,
        the last segment of the group (Kafka: Cleaner.cleanSegments). Raises OSError.
        """
        modified = self._partition.context.files.modified(last.path)
        bases = [*(s.base_offset for s in self.segments[1:]), 2**63]
        for one, below in zip(self._growing, bases, strict=True):
            base = one.segment.base_offset
            one.finish([txn for txn in aborted if base <= txn.last_offset < below], modified)
        return self.segments


# --- rewrite ------------------------------------------------------------

Levels = Mapping[int, "int | None"]
"""The compression level of each codec; None is the codec's default."""

_GROWTH = 16
"""Bytes by which a rewritten record may grow, because its varints may become longer."""


@dataclass
class CleanerStats:
    """Counts of a rewrite. `changed` is the number of batches that differ from the old batches. `keyless` is
    the number of records that were dropped because they had no key.
    """

    records_before: int = 0
    records_after: int = 0
    changed: int = 0
    keyless: int = 0


class Rewriter:
    """Rewrites the segments of a group. The offset map decides which records stay, and the policy decides
    which batches stay. A batch with tombstones, and a marker whose transaction has no more batches, gets the
    delete horizon `new_horizon_ms` (ms since the epoch), unless it has a delete horizon already.
    """

    def __init__(self, offsets: OffsetMap, policy: Policy, now_ms: int, new_horizon_ms: int) -> None:
        self._map, self._policy = offsets, policy
        self._how = ffi.new("seg_cleaning *")
        self._how.now, self._how.new_horizon = now_ms, new_horizon_ms
        self._buffer: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._stretch: SegmentReader | None = None
        self.counts = CleanerStats()

    def rewrite(self, segment: Segment, output: Output, chunk: int, throttle: Throttler) -> None:
        """Append the retained batches of a segment to `output`. Raises CorruptRecordError, OSError,
        CleaningStopped.
        """
        position = self._pass_plain(segment, output, chunk, throttle)
        for piece in pieces(segment, position, chunk, throttle):
            data, batches = self._compact(segment, piece)
            if len(batches):
                throttle(len(data))
                output.add(data, batches)

    def _pass_plain(self, segment: Segment, output: Output, chunk: int, throttle: Throttler) -> int:
        """Rewrite the plain batches (uncompressed, and not of a transaction) at the beginning of a segment,
        unless the topic's codec compresses them. Return the position after these batches.
        """
        if self._policy.compresses:
            return 0
        if self._stretch is None:
            self._stretch = SegmentReader(chunk, throttle.at_once)
        stretch, how, counts = self._stretch, self._how, self.counts
        stretch.begin(segment, 0)
        while not stretch.is_over:
            before = stretch.position
            data, batches = stretch.compact(self._map, self._policy.retained, how)
            if stretch.position == before:
                break
            throttle(stretch.position - before)
            counts.records_before += how.records_before
            counts.records_after += how.records
            counts.changed += how.changed
            counts.keyless += how.keyless
            if len(batches):
                throttle(len(data))
                output.add(data, batches)
        return stretch.position

    def _compact(self, segment: Segment, piece: CleanerPiece) -> tuple[memoryview, NDArray[np.void]]:
        """Return the data and the headers of the retained batches of a piece, in their new codecs."""
        n, records, how, counts = len(piece.batches), piece.records, self._how, self.counts
        policies = self._policy.policies(segment, piece.batches)
        codecs = self._policy.codecs(piece.batches, piece.codecs)
        keep, keyless = self._map.keep(records)
        out, capacity = self._room(len(piece.data) + len(records.arena) + _GROWTH * (len(records) + 8 * n))
        batches, made = np.empty(n, batch_type()), np.empty(n, np.uint8)
        used = lib.seg_compact(
            piece.data, len(piece.data), piece.position, records.arena, len(records.arena),
            batch_ptr(piece.batches), _bytes(policies), _bytes(codecs), n, columns(records), how,
            _bytes(keep), out, capacity, batch_ptr(batches), _bytes(made),
        )  # fmt: skip
        checked(used)
        counts.records_before += len(records)
        counts.records_after += how.records
        counts.changed += how.changed + piece.old
        counts.keyless += keyless
        batches, made = batches[: how.batches], made[: how.batches]
        data = self._buffer.data[:used]
        packed = (made == lib.SEG_REWRITTEN) & (batches["attributes"] & CODEC_MASK != 0)
        return compressed(data, batches, packed, self._policy.level) if packed.any() else (data, batches)

    def _room(self, size: int) -> tuple[Any, int]:
        if len(self._buffer) < size:
            self._buffer = np.empty(size, np.uint8)
        return held("uint8_t *", self._buffer), len(self._buffer)


def compressed(
    data: memoryview, batches: NDArray[np.void], plain: NDArray[np.bool_], level: Levels
) -> tuple[memoryview, NDArray[np.void]]:
    """Compress the batches in the mask `plain`, each with the codec in its header. Return the data and the
    headers of all batches.
    """
    parts: list[Any] = []
    headers = batch_ptr(batches)
    codecs = (batches["attributes"] & CODEC_MASK).tolist()
    spans = zip(batches["position"].tolist(), batches["size"].tolist(), plain.tolist(), strict=True)
    for i, (at, size, is_plain) in enumerate(spans):
        part: Any = data[at : at + size]
        if is_plain:
            squeezed = compress(codecs[i], part[HEADER_SIZE:], level[codecs[i]])
            headers[i].size = HEADER_SIZE + len(squeezed)
            part = bytearray(HEADER_SIZE) + bytearray(squeezed)
            checked(lib.seg_seal(ffi.from_buffer("uint8_t[]", part), len(part), headers + i))
        parts.append(part)
    batches["position"] = batches["size"].cumsum(dtype=np.int64) - batches["size"]
    return memoryview(b"".join(parts)), batches


def _bytes(array: NDArray[np.uint8]) -> Any:
    return held("uint8_t *", array)
