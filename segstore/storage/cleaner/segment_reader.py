"""Reads a segment for the cleaner. `pieces` reads and decodes some batches at a time. `SegmentReader` reads
long runs of plain batches (uncompressed, and not of a transaction) in C.

Segments are only read. Threads: the cleaning thread. Memory: one chunk of stored bytes, and one piece of
decompressed bytes. For runs of plain batches, buffers of 30 times `chunk` are allocated, but the kernel
provides only the pages that are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore._native import ffi, held, lib
from segstore.arrays import np
from segstore.errors import CorruptRecordError
from segstore.records import HEADER_SIZE, Records, batch_ptr, batch_type, decode
from segstore.records.bring_up import bring_up
from segstore.records.header import CODEC_MASK, LEAST_RECORD, MAGIC
from segstore.storage.cleaner.offset_map import OffsetMap, checked
from segstore.storage.segment.batch_scan import BAD, ScanStep, walk

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from segstore.storage.segment.segment import Segment

MOST_PLAIN = 8 << 20
"""A piece has at most this many decompressed bytes, unless it is a single batch that has more."""


class CleanerPiece(NamedTuple):
    """Whole batches of magic 2, their headers `batches`, and their records. A batch begins at byte (position
    in its header - `position`) of `data`.

    `codecs` has the codec that each of the batches has in the segment. If `old`, the batches were made from
    messages of magic 0 and 1, and are uncompressed in `data`.
    """

    data: Bytes
    position: int
    batches: NDArray[np.void]
    records: Records
    codecs: NDArray[np.uint8]
    old: bool


Bytes = bytes | bytearray
Wanted = Callable[["NDArray[np.void]"], "NDArray[np.bool_]"]


def pieces(
    segment: Segment,
    start: int,
    chunk: int,
    throttle: Callable[[int], None],
    wanted: Wanted | None = None,
) -> Iterator[CleanerPiece]:
    """Yield the batches of a segment from byte `start` on, in pieces. If `wanted` is given, it is called with
    headers, and returns a mask of the batches to yield. The CRC of every batch is checked.

    Raises CorruptRecordError if a batch is damaged, because unreadable batches must not be compacted.
    """
    files, handle, end, at = segment.pool.files, segment.handle, segment.size, start
    offset = segment.base_offset
    for step in walk(files, handle, start, end, check_crcs=True, chunk=chunk, least=segment.base_offset):
        at, batches = step.stop.position, step.batches
        throttle(at - step.position)
        if wanted is not None:
            batches = batches[wanted(batches)]
        for run in _runs(batches):
            yield from _run(segment.path, step, run, offset)
            offset = int(run["last_offset"][-1]) + 1
        if len(step.batches):
            offset = step.stop.last_offset + 1
        reason = BAD.get(step.stop.status, "")
    if at < end:
        raise CorruptRecordError(segment.path, at, offset, reason or "the file was cut")


def _runs(batches: NDArray[np.void]) -> list[NDArray[np.void]]:
    """Split the batches into runs of magic 2, runs of uncompressed old messages, and single wrappers."""
    if not len(batches) or (batches["magic"] == MAGIC).all():
        return [batches] if len(batches) else []
    old = batches["magic"] != MAGIC
    # A wrapper (a compressed message that has messages) is split from its neighbours, because it keeps its
    # codec, and only one wrapper is decompressed at a time.
    wrapper = old & (batches["attributes"] & CODEC_MASK != 0)
    begins = (old[1:] != old[:-1]) | wrapper[1:] | wrapper[:-1]
    return np.split(batches, np.flatnonzero(begins) + 1)


def _run(path: str, step: ScanStep, run: NDArray[np.void], least: int) -> Iterator[CleanerPiece]:
    """Yield a run of batches in pieces. The offsets in the run are at least `least`. Raises
    CorruptRecordError.
    """
    old = run["magic"][0] != MAGIC
    data, position, batches = step.data, step.position, run
    codec = (run["attributes"] & CODEC_MASK).astype(np.uint8)
    if old:
        data, batches = bring_up(step.data, run, path, step.position, least=least)
        position, codec = 0, np.full(len(batches), codec[0], np.uint8)
    while len(batches):
        records = decode(data, batches, path, position, most=MOST_PLAIN)
        n = len(records.batches)
        yield CleanerPiece(data, position, batches[:n], records, codec[:n], bool(old))
        batches, codec = batches[n:], codec[n:]


# --- stretch -----------------------------------------------------------------------------------

# C reads long runs of plain batches without a return to Python, and so without the GIL. Each return takes the
# GIL from an appending thread, which must be woken again: a cleaner that returned after every buffer would
# delay one append in twenty. `pieces` reads the other batches: compressed, damaged, or of transactions.

COLUMNS = 7
_WINDOWS = 8
"""One call of `compact` returns at most this many times `chunk` bytes."""


class SegmentReader:
    """Reads a segment from byte `position` on through a buffer of `chunk` bytes. Each call of `put` or
    `compact` reads at most `at_once` bytes, and advances `position`.
    """

    def __init__(self, chunk: int, at_once: int) -> None:
        n, rows = chunk // HEADER_SIZE + 1, chunk // LEAST_RECORD + 1
        self._raw: NDArray[np.uint8] = np.empty(chunk, np.uint8)
        self._of_batches: NDArray[np.uint8] = np.empty((3, n), np.uint8)
        self._batches, self._rows = np.empty(n, batch_type()), np.empty((COLUMNS, rows), np.int64)
        self._keep: NDArray[np.uint8] = np.empty(rows, np.uint8)
        self._out: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._at_once = max(chunk, at_once)
        self._c = c = ffi.new("seg_stretch *")
        c.raw, c.raw_len = held("uint8_t *", self._raw), chunk
        c.policies = held("uint8_t *", self._of_batches)
        c.codecs, c.made = c.policies + n, c.policies + 2 * n
        c.batches, c.max_batches = batch_ptr(self._batches), n
        c.rows, c.max_rows = held("int64_t *", self._rows), rows
        c.keep = held("uint8_t *", self._keep)

    def begin(self, segment: Segment, position: int) -> None:
        """Set the segment, and the position at which the next call of `put` or `compact` begins to read."""
        self._segment, self._handle = segment, segment.handle
        self._c.position, self._c.least = position, segment.base_offset

    @property
    def position(self) -> int:
        return int(self._c.position)

    @property
    def is_over(self) -> bool:
        return self.position >= self._segment.size

    def put(self, offsets: OffsetMap, first: int) -> int:
        """Put the keys of the next records with offsets from `first` on into the map, and return the number
        of bytes that were read. Return 0 if the next batch is compressed, of a transaction, or damaged, or
        may not fit into the map. Raises OSError.
        """
        return self._read(lambda: lib.seg_map_stretch(offsets.c, self._c, first))

    def compact(
        self, offsets: OffsetMap, retained: NDArray[np.int64], how: Any
    ) -> tuple[memoryview, NDArray[np.void]]:
        """Return the data and the headers of the next batches without their superseded records. Both are
        valid until the next call. The C struct `how` gets the counts of batches and records. A batch stays,
        even without records, if its last offset is in the sorted array `retained`. Raises OSError.
        """
        if not len(self._out):
            self._out = np.empty(_WINDOWS * len(self._raw), np.uint8)
            self._out_batches = np.empty(_WINDOWS * len(self._batches), batch_type())
        out, batches, stay = self._out, self._out_batches, held("int64_t *", retained)
        used = self._read(
            lambda: lib.seg_compact_stretch(
                offsets.c, offsets.latest, self._c, stay, len(retained), how,
                ffi.from_buffer("uint8_t *", out), len(out), batch_ptr(batches), len(batches),
            )
        )  # fmt: skip
        return out.data[:used], batches[: how.batches]

    def _read(self, call: Any) -> int:
        c, segment = self._c, self._segment
        c.end = min(segment.size, c.position + self._at_once)

        def run(fd: int) -> int:
            c.fd = fd
            return int(call())

        return checked(segment.pool.files.read_by(self._handle, run))
