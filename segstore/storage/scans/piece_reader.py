"""`PieceReader`: reads the records of a piece of a partition's log as columns.

If only offsets and timestamp types are wanted, and a batch has as many records as offsets, only its header is
read. Other batches are read whole, checked and decoded. Control batches are left out. A `read_committed`
reader also leaves out the batches of aborted transactions.

On disk: only reads. Threads: any number may use one reader.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore._native import ffi, lib, unset
from segstore.arrays import np
from segstore.errors import CorruptRecordError
from segstore.records import (
    APPEND_TIME_FLAG,
    BATCH_SIZE,
    CODEC_MASK,
    CONTROL_FLAG,
    MAGIC,
    TRANSACTIONAL_FLAG,
    batch_type,
    scan_headers,
    stamped,
)
from segstore.records.table import Empty, RecordTable
from segstore.storage.log.read import FetchDataInfo, fetch, first_batch
from segstore.storage.log.reading import Reading
from segstore.storage.producers.aborted_transactions import doubtful
from segstore.storage.segment.segment import Segment

from .dense import recall, remember, remembered
from .pieces import ScanPiece

if TYPE_CHECKING:
    from numpy.typing import NDArray

BY_HEADERS = frozenset({"topic", "partition", "offset", "timestamp_type"})
"""The columns that batch headers determine."""
_CONSTANT = frozenset({"topic", "partition"})
AT_A_TIME, HEADERS_AT_A_TIME, COUNTED_AT_A_TIME = 8 << 20, 64 << 20, 256 << 20
"""Sizes of a piece in bytes: in general, if headers are enough, and if records are only counted. Pieces are
so large that the Python code takes little time beside the C code. Headers need little memory, and counts need
none, so these pieces are larger.
"""
STEP = 2 << 20
"""Bytes of a read, few enough to stay in a processor's cache until they are decoded."""
WINDOW = 1 << 18
"""Bytes that C reads, checks and decodes at a time, few enough to stay in a core's cache."""
_windows: list[Any] = []
"""Free buffers of WINDOW bytes. A call takes a buffer, and puts it back when it ends."""
_LEAST_READ = 4096
"""The least bytes of one read. The size of a piece is only an estimate. After that many bytes were read, the
remaining batches of the piece are read in steps of this size.
"""
_MOST_PLAIN = 64 << 20
"""Decompressed bytes after which a piece ends early."""
_MOST_ROWS, _MOST_COUNTED = 1 << 20, 1 << 22
_SMALL_BATCH = 1 << 10
"""If a batch is smaller than this, the next headers are found by reading all bytes."""
_CHUNK = 1 << 20
_MOST_HEADERS = 4096


class PieceRead(NamedTuple):
    """The rows of a piece up to `next_offset`. If `next_offset` is below the piece's end, the next read
    continues at `next_offset`. If `next_offset` is the piece's start, the log ends there.
    """

    partition: int
    rows: RecordTable
    next_offset: int


class PieceReader:
    """Reads the `columns` of records. Batches that have no timestamp in the range `times` (first and last ms)
    may be left out. `empty` allocates memory, like `numpy.empty`.
    """

    def __init__(
        self,
        columns: Collection[str],
        committed: bool,
        check_crcs: bool,
        times: tuple[int, int] | None,
        empty: Empty = np.empty,
    ) -> None:
        self._columns, self.committed, self._check_crcs = frozenset(columns), committed, check_crcs
        self.by_headers, is_count = self._columns <= BY_HEADERS, self._columns <= _CONSTANT
        self._times, self._empty = times, empty
        self._most_rows = _MOST_COUNTED if is_count else _MOST_ROWS
        self.size = COUNTED_AT_A_TIME if is_count else HEADERS_AT_A_TIME if self.by_headers else AT_A_TIME
        """Bytes of the log per piece."""

    def cost(self, piece: ScanPiece) -> int:
        """Return an estimate of the bytes of the log that must be read for a piece, 0 if remembered ranges
        (`DenseRange`) seem to cover the piece. Raises the errors of `read`.
        """
        if not self.by_headers:
            return piece.size
        log = piece.of.log
        is_known = log.with_reading(piece.start, self.committed, lambda reading: _is_known(reading, piece))
        return 0 if is_known else piece.size

    def read(self, piece: ScanPiece) -> PieceRead:
        """Read a piece, at least its first batch. If the first batch is damaged, raises the errors of
        `PartitionLog.read`. If a later batch is damaged, only the batches before the damaged batch are read.
        """
        log = piece.of.log
        return log.with_reading(piece.start, self.committed, lambda reading: self._read(reading, piece))

    def _read(self, reading: Reading, piece: ScanPiece) -> PieceRead:
        rows = RecordTable(self._columns - _CONSTANT, min(piece.size, 2 * self.size), self._empty)
        made = _Making(reading, piece, rows, self._check_crcs, self._times)
        try:
            if self.by_headers:
                made.by_headers(self._most_rows)
            if made.at == piece.start:
                made.by_records(piece.end, piece.size)
        except CorruptRecordError:
            if made.at == piece.start:
                raise
        return PieceRead(piece.of.log.partition, made.rows, made.at)


def _is_known(reading: Reading, piece: ScanPiece) -> bool:
    """Return whether remembered ranges cover the piece."""
    view, at, end = reading.view, piece.start, min(piece.end, reading.limit)
    while at < end:
        slot = view.slot(at)
        _, below = view.bounds(slot)
        known = remembered(view.segments[slot], at)
        if known is None:
            return False
        at = min(known.end, below)
    return True


class _Making:
    """The state of a read: `at` is the offset up to which the piece was read."""

    def __init__(
        self,
        reading: Reading,
        piece: ScanPiece,
        rows: RecordTable,
        check_crcs: bool,
        times: tuple[int, int] | None,
    ) -> None:
        self._reading, self._check_crcs, self._times = reading, check_crcs, times
        self._first, self._end = piece.start, min(piece.end, reading.limit)
        self.rows, self.at, self._expected = rows, piece.start, piece.size
        self._is_short = times is None and "headers_at" not in rows.arrays

    # --- records --------------------------------------------------------------------------

    def by_records(self, end: int, size: int) -> None:
        """Read and decode batches of about `size` bytes up to offset `end`, or until `_MOST_PLAIN` bytes were
        decoded.
        """
        end = min(end, self._end)
        while self.at < end and self.rows.plain < _MOST_PLAIN:
            view, gaps = self._reading.view, self._reading.gaps
            if size > 0 and self._is_short and (done := self._by_short_way(end, size)):
                size -= done
                continue
            at_once = min(STEP, max(size, _LEAST_READ))
            parts = fetch(view, self.at, end, at_once, self._check_crcs, gaps)
            if not parts:
                self.at = end
            for fetched in parts:
                size -= len(fetched.data)
                if not self._take(fetched):
                    return

    def _by_short_way(self, end: int, size: int) -> int:
        """Read plain batches of one segment up to offset `end`, at most `size` bytes, by one call of C.
        Return the number of bytes of these batches, 0 if the first batch must be read by the slow path.
        """
        view, at = self._reading.view, self.at
        slot = view.slot(at)
        last_byte, below = view.bounds(slot)
        segment = view.segments[slot]
        first = first_batch(view, slot, last_byte, at, end, self._reading.gaps)
        refused = TRANSACTIONAL_FLAG if self._reading.aborted is not None else 0
        if first is None or first.magic != MAGIC or first.size > WINDOW:
            return 0
        if first.attributes & (CODEC_MASK | refused):
            return 0
        try:
            window = _windows.pop()
        except IndexError:
            window = unset("uint8_t[]", WINDOW)
        begin, place = int(first.position), (self._first, end, below, first.position, first.base_offset)
        r = ffi.new("seg_table_read *", (*place, 0, 0, 0, self._check_crcs, refused))
        files, handle = segment.pool.files, segment.handle
        last_byte = min(last_byte, begin + min(size, _MOST_PLAIN))
        self.rows.read(first.size, r, lambda table, r: files.read_by(
            handle, lambda fd: lib.seg_read_table(fd, last_byte, window, WINDOW, table, r)
        ))  # fmt: skip
        _windows.append(window)
        if r.position > begin:
            self._reach(r.next_offset)
        return int(r.position) - begin

    def _take(self, fetched: FetchDataInfo) -> bool:
        """Add the records of batches that were read; return False if not all of the batches were added."""
        segment, data, position, batches, _, _ = fetched
        whole = len(batches)
        wanted, batches = self._wanted(batches)
        if self._times is not None:
            wanted &= stamped(data, batches, position, *self._times)
        if len(batches) and wanted.any():
            chosen = batches if wanted.all() else batches[wanted]
            most = max(1, _MOST_PLAIN - self.rows.plain)
            try:
                taken = self.rows.add(data, chosen, segment.path, position, self._first, self._end, most)
            finally:
                self._reach(self.rows.next_offset)
            if not taken:
                return False
        if len(batches):
            self._reach(int(batches["last_offset"][-1]) + 1)
        return len(batches) == whole

    def _reach(self, offset: int) -> None:
        self.at = max(self.at, min(offset, self._end))

    def _wanted(self, batches: NDArray[np.void]) -> tuple[NDArray[np.bool_], NDArray[np.void]]:
        """Return a mask and batches. The batches are those before the first batch whose transaction has an
        unknown outcome. The mask is False for control batches and batches of aborted transactions. Raises
        CorruptRecordError if the outcome for the very first batch is unknown.
        """
        aborted, view = self._reading.aborted, self._reading.view
        wanted = (batches["attributes"] & CONTROL_FLAG) == 0
        if aborted is None:
            return wanted, batches
        bad, doubt = aborted.judged(view, batches)
        if doubt is not None:
            at, reason = doubt
            if not at:
                raise doubtful(view, batches[0], reason)
            return (wanted & ~bad)[:at], batches[:at]
        return wanted & ~bad, batches

    # --- headers --------------------------------------------------------------------------

    def by_headers(self, most_rows: int) -> None:
        """Add rows of the batches, from their headers alone if these determine the rows. Stop at the end of
        the piece, after the last batch, or when there are `most_rows` rows or more.
        """
        view, limit = self._reading.view, self._end
        slot = view.slot(self.at)
        while slot < len(view.segments) and self.at < limit and (room := most_rows - len(self.rows)) > 0:
            end, below = view.bounds(slot)
            if not self._recall(view.segments[slot], end, room) and not self._walk(slot, end, below):
                return
            slot = view.slot(self.at)

    def _recall(self, segment: Segment, end: int, room: int) -> bool:
        """Add at most `room` rows of the remembered range that contains the offset `at`; return False if
        there is no such range.
        """
        known = recall(segment, self.at, end)
        if known is None:
            return False
        first, last = self.at, min(known.end, self._end, self.at + room)
        self.rows.add_range(first, last, known.timestamp_type, last - first)
        self._reach(last)
        return True

    def _walk(self, slot: int, end: int, below: int) -> bool:
        """Add rows by the headers of one segment, which is visible up to byte `end` and offset `below`.
        Return False if the read of the piece ends in this segment.
        """
        limit = self._end
        first = first_batch(self._reading.view, slot, end, self.at, limit, self._reading.gaps)
        position, size = (end, 0) if first is None else (int(first.position), int(first.size))
        while position < end and self.at < limit:
            batches = self._headers(slot, position, end, size)
            shown = batches[: int((batches["last_offset"] < below).sum())]
            if not self._take_headers(slot, shown) or len(shown) < len(batches):
                return False
            size = int(batches["size"][-1])
            position = int(batches["position"][-1]) + size
        self._reach(below)
        return True

    def _headers(self, slot: int, position: int, end: int, size: int) -> NDArray[np.void]:
        """Return headers of batches from a position on; the first batch has `size` bytes."""
        segment = self._reading.view.segments[slot]
        files, handle = segment.pool.files, segment.handle
        if size < _SMALL_BATCH:
            data = files.pread(handle, min(_CHUNK, end - position), position)
            headers, _ = scan_headers(data, position, check_crcs=False, least=self.at)
            return np.frombuffer(headers, batch_type())
        room = min(_MOST_HEADERS, self._expected // size + 2)
        out = ffi.new("seg_batch[]", room)
        n = files.read_by(handle, lambda fd: lib.seg_read_headers(fd, position, end, -1, out, room))
        self._expected = max(0, self._expected - n * size)
        return np.frombuffer(bytearray(ffi.buffer(out, n * BATCH_SIZE)), batch_type())

    def _take_headers(self, slot: int, batches: NDArray[np.void]) -> bool:
        """Add rows of batches by their headers, and read the batches whose records the headers don't
        determine. Return False if not all rows of these batches were added, or if there are no batches.
        """
        count = len(batches)
        batches = batches[: int((batches["base_offset"] < self._end).sum())]
        is_last = len(batches) < count
        rows = len(self.rows) + np.cumsum(batches["count"], dtype=np.int64)
        fits = batches[: max(1, int((rows <= _MOST_ROWS).sum()))]
        wanted, known = self._wanted(fits) if len(fits) else (np.empty(0, bool), fits)
        for kind, first, last in _runs(known, wanted):
            run = known[first:last]
            if not self._take_run(kind, run, int(rows[len(fits) - 1])):
                return False
            if kind == _DENSE and not (run["attributes"] & TRANSACTIONAL_FLAG).any():
                view = self._reading.view
                remember(view.segments[slot], run, view.bounds(slot)[0])
        if len(known) < len(batches):
            return False
        if is_last:  # no record lies between the last of these batches and the end of the piece
            self.at = self._end
        return count > 0

    def _take_run(self, kind: int, run: NDArray[np.void], expected: int) -> bool:
        """Add the records of adjacent batches of one kind; return False if not all batches were added."""
        base, end = int(run["base_offset"][0]), min(int(run["last_offset"][-1]) + 1, self._end)
        if kind == _READ:
            self.at = max(self.at, base)  # no record lies between `at` and the first batch of the run
            self.by_records(end, int(run["size"].sum(dtype=np.int64)))
            return self.at >= end
        if kind == _DENSE and end > (first := max(base, self._first)):
            is_append_time = bool(run["attributes"][0] & APPEND_TIME_FLAG)
            self.rows.add_range(first, end, is_append_time, expected)
        self._reach(end)
        return True


_LEFT_OUT, _DENSE, _READ = range(3)
"""Kinds of batches: their records are left out, are known from the headers, or must be read."""
_FEW = 8
"""If more than one batch in this many must be read, it is faster to read all batches."""


def _runs(batches: NDArray[np.void], wanted: NDArray[np.bool_]) -> Iterator[tuple[int, int, int]]:
    """Divide batches into runs of one kind; yield the kind, the number of the first batch, and the number
    after the last batch of each run. A run of _DENSE batches has no gap, and one timestamp type.
    """
    if not len(batches):
        return
    bases, lasts, counts = batches["base_offset"], batches["last_offset"], batches["count"]
    new = batches["magic"] == MAGIC
    # The count of a plain batch was checked against its size. The header of a compressed batch may have any
    # count, so a batch with a large count is read.
    possible = ((batches["attributes"] & CODEC_MASK) == 0) | (counts <= _MOST_ROWS)
    kinds = np.where(new & possible & (counts == lasts - bases + 1), _DENSE, _READ)
    kinds[~wanted | (new & (counts == 0))] = _LEFT_OUT
    if (kinds == _READ).sum() * _FEW > len(batches):
        kinds[:] = _READ
    types = batches["attributes"] & APPEND_TIME_FLAG
    breaks = (bases[1:] != lasts[:-1] + 1) | (types[1:] != types[:-1])
    ends = np.flatnonzero((kinds[1:] != kinds[:-1]) | (breaks & (kinds[1:] == _DENSE))) + 1
    for first, last in pairwise([0, *ends.tolist(), len(batches)]):
        yield int(kinds[first]), first, last
