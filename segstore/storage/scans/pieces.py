"""`ScanPiece`: a range of a partition's offsets, which is read in one step. The entries of the indexes decide
where pieces end.

Index files of segments are read. The indexes are only hints: a wrong index makes a piece too small or too
large, but no record is lost. Threads: any; nothing is shared.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from segstore.index import OffsetIndex
from segstore.storage.log.reading import Reading
from segstore.storage.segment.log_view import LogView

from .scan import ScannedLog


class TopicRange(NamedTuple):
    """The offsets from `start` up to `end` of a partition's log."""

    log: ScannedLog
    start: int
    end: int


class ScanPiece(NamedTuple):
    """The offsets from `start` up to `end`, a part of the range `of`. They take about `size` bytes in the
    log.
    """

    of: TopicRange
    start: int
    end: int
    size: int


def pieces_of(ranges: Iterable[TopicRange], size: int, committed: bool) -> Iterator[ScanPiece]:
    """Yield the pieces of ranges in order, about `size` bytes each. No piece goes beyond the log's present
    end, or, if `committed`, beyond the last stable offset. Raises the errors of `PartitionLog.read`.
    """
    for each in ranges:
        start = each.start
        while start < each.end:
            piece = each.log.with_reading(start, committed, partial(_next, each, start, size))
            if piece is None:
                break
            yield piece
            start = piece.end


def _next(of: TopicRange, start: int, size: int, reading: Reading) -> ScanPiece | None:
    end = min(of.end, reading.limit)
    return ScanPiece(of, start, *_cut(reading.view, start, end, size)) if start < end else None


def _cut(view: LogView, start: int, end: int, size: int) -> tuple[int, int]:
    """Return the end offset (at most `end`) of the piece that begins at `start`, and the number of its bytes,
    which is about `size`.
    """
    taken, slot = 0, view.slot(start)
    while True:
        segment, (last_byte, below) = view.segments[slot], view.bounds(slot)
        index, base = segment.indexes[0], segment.base_offset
        hint = index.lookup(start - base)
        at = hint[1] if hint is not None and hint[1] < last_byte else 0
        if end < below and (entry := _first(index, _OFFSET, end - 1 - base)) < index.entries:
            last_byte = min(last_byte, index.entry(entry)[_POSITION])
        if last_byte - at > size - taken:
            entry = _first(index, _POSITION, at + size - taken + 1) - 1
            # The piece is cut after the batch of the index entry before `entry`, because that batch ends at
            # or before the position of `entry`.
            if entry > 0 and (cut := base + index.entry(entry - 1)[_OFFSET] + 1) > start:
                return min(cut, end), taken + index.entry(entry)[_POSITION] - at
        taken += max(last_byte - at, 0)
        slot += 1
        if taken >= size or end <= below or slot == len(view.segments):
            return max(min(below, end), start + 1), taken
        start = max(start, below)


_OFFSET, _POSITION = range(2)


def _first(index: OffsetIndex, field: int, least: int) -> int:
    """Return the number of the first entry whose field has at least this value."""
    return bisect_left(range(index.entries), least, key=lambda slot: index.entry(slot)[field])
