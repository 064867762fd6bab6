"""`Piece`: a range of a partition's offsets that is read at a time; where pieces end is told by the indexes.

On disk indexes of segments are read, which are hints only: a piece of the wrong size is a piece all the same.
Threads: any; nothing is shared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from segstore.storage.log.reading import Reading
from segstore.storage.segment.log_view import LogView

from .scan import Log


class TopicRange(NamedTuple):
    """The offsets from `start` up to `end` of a partition's log."""

    log: Log
    start: int
    end: int


class Piece(NamedTuple):
    """Offsets of a range, and about how many bytes of the log they have."""

    of: TopicRange
    start: int
    end: int
    size: int


def pieces_of(ranges: Iterable[TopicRange], size: int, committed: bool) -> Iterator[Piece]:
    """Yield the pieces of ranges, in order, about `size` bytes each. A range ends where its log ends then,
    with `committed` at the last stable offset. Raises as `PartitionLog.read`.
    """
    for each in ranges:
        start = each.start
        while start < each.end:
            piece = each.log.with_reading(start, committed, partial(_next, each, start, size))
            if piece is None:
                break
            yield piece
            start = piece.end


def _next(of: TopicRange, start: int, size: int, reading: Reading) -> Piece | None:
    end = min(of.end, reading.limit)
    if start >= end:
        return None
    cut, taken = _cut(reading.view, start, size)
    return Piece(of, start, min(cut, end), taken)


def _cut(view: LogView, start: int, size: int) -> tuple[int, int]:
    """Return an offset up to which a view has about `size` bytes from `start` on, and how many."""
    taken, slot = 0, view.slot(start)
    while True:
        segment, (position_end, below) = view.segments[slot], view.bounds(slot)
        index = segment.indexes[0]
        hint = index.lookup(start - segment.base_offset)
        at = hint[1] if hint is not None else 0
        if position_end - at > size - taken:
            last = index.entries
            slot_of = bisect_right(range(last), at + size - taken, key=lambda i: index.entry(i)[1])
            relative, position = index.entry(slot_of - 1) if slot_of else (-1, 0)
            if segment.base_offset + relative >= start:
                return segment.base_offset + relative + 1, taken + position - at
        taken += max(position_end - at, 0)
        slot += 1
        if taken >= size or slot == len(view.segments):
            return below, taken
        start = max(start, below)
