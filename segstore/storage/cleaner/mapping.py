"""Fills the offset map from the dirty part of a log (Kafka: Cleaner.buildOffsetMap). On disk: reads only.

Threads: the cleaning thread.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from segstore.storage.cleaner.offset_map import OffsetMap
from segstore.storage.cleaner.reading import pieces
from segstore.storage.cleaner.retain import Aborted
from segstore.storage.cleaner.segment_reader import Stretch
from segstore.storage.cleaner.throttle import Throttle
from segstore.storage.segment.segment import Segment


def fill(
    offsets: OffsetMap,
    segments: Sequence[Segment],
    first: int,
    until: int,
    aborted: Aborted,
    chunk: int,
    throttle: Throttle,
) -> None:
    """Take in the keys of `segments` from offset `first` up to `until`, where they end, or to where the map
    is full: `offsets.latest` says.

    CorruptRecordError, OSError, CleaningStopped.
    """
    offsets.latest = first - 1
    stretch = Stretch(chunk, throttle.at_once)
    bases = [segment.base_offset for segment in segments]
    for segment in segments[max(bisect_right(bases, first) - 1, 0) :]:
        position = _pass_plain(offsets, segment, first, stretch, throttle)
        if not _take(offsets, segment, position, first, aborted, chunk, throttle):
            return
    offsets.latest = until - 1


def _pass_plain(
    offsets: OffsetMap, segment: Segment, first: int, stretch: Stretch, throttle: Throttle
) -> int:
    """Take in the keys of the plain batches that come first: up to which byte of the segment."""
    stretch.begin(segment, _position(segment, first))
    while not stretch.is_over and (passed := stretch.put(offsets, first)):
        throttle(passed)
    return stretch.position


def _take(
    offsets: OffsetMap,
    segment: Segment,
    position: int,
    first: int,
    aborted: Aborted,
    chunk: int,
    throttle: Throttle,
) -> bool:
    """Whether all keys of the segment, from a byte of it on, went in."""
    for piece in pieces(segment, position, chunk, throttle, lambda batches: ~aborted.without_keys(batches)):
        done = offsets.put(piece.records, first)
        if done < len(piece.records):
            offsets.latest = int(piece.records.offsets[done]) - 1
            return False
    return True


def _position(segment: Segment, offset: int) -> int:
    """Where the batch lies that holds `offset`, or the first behind it."""
    if offset <= segment.base_offset:
        return 0
    found = segment.locate(offset, segment.size)
    return segment.size if found is None else int(found.position)
