"""Reads many single records by their offsets, for `PartitionLog.read_many`.

Files on disk are only read. Threads: any, without locks, because each call has memory of its own. The fast
path is one call of C for many batches of a segment; it copies the requested records, not their batches. If
the fast path can't read a batch, the slow path decodes it, once for all requested records of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from segstore._native import ffi, held
from segstore.arrays import is_array, np
from segstore.config import arguments
from segstore.errors import CorruptRecordError, InvalidArgumentError, InvalidTypeError, OffsetOutOfRangeError
from segstore.records import Records, batch_type, concat, empty_records
from segstore.records.records import OFFSET, ROWS, picked, rearranged
from segstore.storage.log import point_read
from segstore.storage.segment.log_view import LogView

if TYPE_CHECKING:
    from numpy.typing import NDArray

LongWay = Callable[[LogView, int], Records]
"""A function that returns the records from an offset on, at least one batch of them; empty Records if no
record follows.
"""

_ROOM = 1 << 20
"""Bytes for keys, values and headers of one call of C; this is more than the largest batch of the fast path.
"""
_MOST = 4096
"""The most records of one call of C."""


_ALLOWED = "allowed are integers in a list or an array"


def as_offsets(offsets: Any) -> NDArray[np.int64]:
    """Return offsets as int64. Raises InvalidTypeError for an offset that is not an integer,
    InvalidArgumentError for an offset above int64.
    """
    if not is_array(offsets):
        if isinstance(offsets, (str, bytes)) or not isinstance(offsets, Iterable):
            raise InvalidTypeError(f"offsets is {type(offsets).__name__}: {_ALLOWED}")
        least = -arguments.INT64_MAX - 1
        return np.array([arguments.whole("offset", offset, least) for offset in offsets], np.int64)
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu":
        raise InvalidTypeError(f"offsets are {offsets.dtype}, {offsets.ndim}-dimensional: {_ALLOWED}")
    if offsets.dtype == np.uint64 and (offsets > np.uint64(arguments.INT64_MAX)).any():
        raise InvalidArgumentError(f"offset={offsets.max()}: must be at most {arguments.INT64_MAX}")
    return np.ascontiguousarray(offsets, np.int64)


def read_many(view: LogView, asked: NDArray[np.int64], short: bool, long_way: LongWay, where: str) -> Records:
    """Return one record for each offset: the record at the offset, or the next record that exists. `short`:
    whether the fast path may be used. Raises OffsetOutOfRangeError, CorruptRecordError, OSError.
    """
    if not len(asked):
        return empty_records(view.start_offset)
    outside = (asked < view.start_offset) | (asked >= view.end_offset)
    if outside.any():
        raise _nothing_at(int(asked[outside.argmax()]), view, where)
    wanted, places = np.unique(asked, return_inverse=True)
    parts, done = list[Records](), 0
    while done < len(wanted):
        part = _by_short_way(view, wanted[done:]) if short else None
        if part is None:
            part = _by_long_way(view, wanted[done:], long_way, where)
        parts.append(part)
        done += len(part)
    found = parts[0] if len(parts) == 1 else concat(parts)
    return rearranged(found, places)


def _nothing_at(offset: int, view: LogView, where: str) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(offset, view.start_offset, view.end_offset, where)


def _by_short_way(view: LogView, wanted: NDArray[np.int64]) -> Records | None:
    """Return the records of the first offsets in `wanted`, as many as the fast path finds. Return None if it
    finds no record.
    """
    slot = view.slot(wanted.item(0))
    segment, (end, below) = view.segments[slot], view.bounds(slot)
    offsets, n = held("int64_t *", wanted), min(int(wanted.searchsorted(below)), _MOST)
    room = _Room(n)
    try:
        handle = segment.handle
        with point_read.borrowed() as point:
            _index = segment.fill(point.segment, point.of, end, below)
            done = segment.pool.files.read_many(handle, point.segment, offsets, n, point.c, room.c)
    except (OSError, CorruptRecordError) as error:
        point_read.leave(error)
        return None
    return room.records(done) if done else None


class _Room:
    """Memory for the result of one call of C: at most `n` records."""

    def __init__(self, n: int) -> None:
        self._matrix, self._batches = np.empty((ROWS, n), np.int64), np.empty(n, batch_type())
        self._arena = held("uint8_t[]", np.empty(_ROOM, np.uint8))
        places = held("int64_t *", self._matrix), held("seg_batch *", self._batches)
        self.c = ffi.new("seg_points *")
        self.c.arena, self.c.room, self.c.stride = self._arena, _ROOM, n
        self.c.rows, self.c.batches = self._places = places

    def records(self, n: int) -> Records:
        """Return the `n` records that were found."""
        c, matrix = self.c, self._matrix[:, :n]
        data = ffi.buffer(self._arena)[: c.used]
        next_offset = matrix.item(OFFSET, n - 1) + 1
        return Records(data, matrix, next_offset, self._batches[: c.n_batches], c.with_headers > 0)


def _by_long_way(view: LogView, wanted: NDArray[np.int64], long_way: LongWay, where: str) -> Records:
    """Read the record of the first offset of `wanted` by the slow path. Return this record, and the records
    of further offsets of `wanted` in the batches that were read.
    """
    read = long_way(view, wanted.item(0))
    if not len(read):
        raise _nothing_at(wanted.item(0), view, where)
    offsets = read.offsets
    n = int(wanted.searchsorted(offsets[-1], "right"))
    return picked(read, offsets.searchsorted(wanted[:n]))
