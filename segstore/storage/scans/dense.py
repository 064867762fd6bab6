"""`DenseRange`: a range of offsets without a gap, which is remembered so that the headers of its batches need
not be read again.

On disk: only reads. Threads: any. The remembered ranges of a segment are replaced by one assignment; if two
threads do this at the same time, one of the ranges may be forgotten. A segment's batches change only if a
replica cuts off the last batches and appends other batches. So a range is valid as long as its last batch is
unchanged.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore._native import ffi
from segstore.arrays import np
from segstore.records import APPEND_TIME_FLAG
from segstore.storage.segment.segment import Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LEAST = 16
"""A range with fewer batches than this is not worth its memory."""
_MOST = 256
"""The most ranges that are remembered for one segment."""


class DenseRange(NamedTuple):
    """Offsets from `first` up to `end`, whose batches end at byte `position`."""

    first: int
    end: int
    timestamp_type: int
    position: int
    last: tuple[int, ...]
    """The last batch: position, base offset, last offset, CRC, leader epoch, size."""


def dense_range(run: NDArray[np.void]) -> DenseRange:
    """Return the DenseRange of `run`, which has adjacent batches without gaps and with one timestamp type."""
    last = run[-1]
    fields = tuple(int(last[name]) for name in _FIELDS)
    timestamp_type = int(run["attributes"][0] & APPEND_TIME_FLAG != 0)
    first, end, position = int(run["base_offset"][0]), fields[2] + 1, fields[0] + fields[-1]
    return DenseRange(first, end, timestamp_type, position, fields)


_FIELDS = "position", "base_offset", "last_offset", "crc", "leader_epoch", "size"


def remember(segment: Segment, run: NDArray[np.void], end: int) -> None:
    """Remember a run of batches of a segment as one range. Remembered ranges directly before and after the
    run are joined with it. `end` is the segment's visible size in bytes. A short run is remembered only if
    a remembered range lies directly before or after it.
    """
    span = dense_range(run)
    joined = span
    for each in segment.dense:
        if each.timestamp_type != span.timestamp_type:
            continue
        # A range before the run is checked now, because later only the last batch of the joined range is
        # checked, and that is a batch of `run`.
        if each.end == span.first and _is_there(segment, each, end):
            joined = joined._replace(first=each.first)
        elif each.first == span.end:
            joined = each._replace(first=joined.first)
    if len(run) < _LEAST and joined == span:
        return
    # A remembered range that overlaps the new range is out of date, because otherwise the batches of the new
    # range would not have been read.
    known = [each for each in segment.dense if each.end <= joined.first or each.first >= joined.end]
    if len(known) < _MOST:
        segment.dense = tuple(sorted([*known, joined]))


def recall(segment: Segment, offset: int, end: int) -> DenseRange | None:
    """Return the remembered range that contains an offset. Return None if there is no such range, if its
    batches end above byte `end`, or if they have changed.
    """
    span = remembered(segment, offset)
    if span is None or span.position > end:
        return None
    return span if _is_there(segment, span, end) else None


def remembered(segment: Segment, offset: int) -> DenseRange | None:
    """Return the remembered range that contains an offset, or None. The range may be out of date."""
    known = segment.dense
    at = bisect_right(known, offset, key=lambda each: each.first) - 1
    return known[at] if at >= 0 and offset < known[at].end else None


def _is_there(segment: Segment, span: DenseRange, end: int) -> bool:
    out: Any = ffi.new("seg_batch *")
    code = segment.pool.files.seek_batch(segment.handle, span.last[0], end, 0, out)
    return code == 1 and tuple(getattr(out, name) for name in _FIELDS) == span.last
