"""`DenseRange`: batches of a segment that have every offset of a range, as their headers told; these need not
be read again.

On disk: only reads. Threads: any; what is remembered is replaced in one assignment, and may be lost to
another thread's. Batches of a segment change in one way only: a replica's last ones are cut off. So a range
holds for as long as its last batch is where it was.
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
"""Batches of a range that is worth a place in memory."""
_MOST = 256
"""Ranges of a segment."""


class DenseRange(NamedTuple):
    """Offsets from `first` up to `end`, whose batches end at byte `position`."""

    first: int
    end: int
    timestamp_type: int
    position: int
    last: tuple[int, ...]
    """Of the last batch: position, base offset, last offset, CRC, leader epoch, size."""


def dense_range(run: NDArray[np.void]) -> DenseRange:
    """Return the range of neighbours that have no gap and one timestamp type."""
    last = run[-1]
    said = tuple(int(last[name]) for name in _SAID)
    timestamp_type = int(run["attributes"][0] & APPEND_TIME_FLAG != 0)
    return DenseRange(int(run["base_offset"][0]), said[2] + 1, timestamp_type, said[0] + said[-1], said)


_SAID = "position", "base_offset", "last_offset", "crc", "leader_epoch", "size"


def remember(segment: Segment, run: NDArray[np.void], end: int) -> None:
    """Remember a run that was read of a segment that is visible up to byte `end`, as one range with those
    before and behind it; a short one only so.
    """
    found = dense_range(run)
    joined = found
    for each in segment.dense:
        if each.timestamp_type != found.timestamp_type:
            continue
        # The one before must hold now: what shows later that the joined range holds is its last batch.
        if each.end == found.first and _is_there(segment, each, end):
            joined = joined._replace(first=each.first)
        elif each.first == found.end:
            joined = each._replace(first=joined.first)
    if len(run) < _LEAST and joined == found:
        return
    # What overlaps held no more, or it would not have been read.
    known = [each for each in segment.dense if each.end <= joined.first or each.first >= joined.end]
    if len(known) < _MOST:
        segment.dense = tuple(sorted([*known, joined]))


def recall(segment: Segment, offset: int, end: int) -> DenseRange | None:
    """Return the range that has an offset, if it is remembered, lies below byte `end` and still holds."""
    found = remembered(segment, offset)
    if found is None or found.position > end:
        return None
    return found if _is_there(segment, found, end) else None


def remembered(segment: Segment, offset: int) -> DenseRange | None:
    """Return the range that has an offset, if it is remembered; it may hold no more."""
    known = segment.dense
    at = bisect_right(known, offset, key=lambda each: each.first) - 1
    return known[at] if at >= 0 and offset < known[at].end else None


def _is_there(segment: Segment, found: DenseRange, end: int) -> bool:
    out: Any = ffi.new("seg_batch *")
    code = segment.pool.files.seek_batch(segment.handle, found.last[0], end, 0, out)
    return code == 1 and tuple(getattr(out, name) for name in _SAID) == found.last
