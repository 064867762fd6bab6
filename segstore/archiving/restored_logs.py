"""`RestoredLog`: the archived bytes from which one segment of a restored partition is made.

Nothing is on disk. Threads: any; values and functions without state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from segstore import names
from segstore.archiving.downloads import ObjectRange
from segstore.archiving.object_names import TopicIdPartition
from segstore.archiving.pieces import ArchivedPiece, ArchivedSegment
from segstore.errors import CorruptArchiveError


class RestoredLog(NamedTuple):
    """The archived log of a segment, in a sealed segment's object or in pieces. It has offsets from `base`
    on, below `end`. Offsets below `first` are left out, because the previous log has them, too.
    """

    base: int
    end: int
    max_timestamp: int
    ranges: tuple[ObjectRange, ...]
    segment: ArchivedSegment | None = None
    first: int = 0

    @property
    def name(self) -> int:
        """Return the base offset of the restored segment."""
        return max(self.base, self.first)


def of_segments(key: TopicIdPartition, segments: Iterable[ArchivedSegment]) -> Iterator[RestoredLog]:
    """Yield the logs of sealed segments, which must be in order."""
    first = 0
    for each in segments:
        log = file_of(key, each, names.LOG)
        yield RestoredLog(each.base, each.end, each.max_timestamp, (log,), each, first)
        first = each.end


def file_of(key: TopicIdPartition, segment: ArchivedSegment, suffix: str) -> ObjectRange:
    """Return a range: the whole object that has a segment's file."""
    size, crc = segment.files[suffix]
    return ObjectRange(segment.object(key, suffix), 0, size, crc)


def of_pieces(pieces: Iterable[ArchivedPiece]) -> Iterator[RestoredLog]:
    """Yield the logs that are in pieces. Raises CorruptArchiveError if the beginning of a log is missing."""
    for base, group in groupby(pieces, key=lambda it: it.base):
        some = list(group)
        if some[0].position:
            where = f"byte {some[0].position} of the segment from offset {base} on"
            raise CorruptArchiveError(some[0].object, f"a piece begins at {where}, and none is before it")
        ranges = tuple(ObjectRange(it.object, it.at, it.length, it.crc) for it in some)
        yield RestoredLog(base, some[-1].end, max(it.max_timestamp for it in some), ranges)


def restored_logs(
    key: TopicIdPartition,
    segments: Iterable[ArchivedSegment],
    pieces: Iterable[ArchivedPiece],
    start: int,
    end: int,
) -> list[RestoredLog]:
    """Return the logs with offsets from `start` on, below `end`: first the logs of segments, in order, then
    the logs of pieces. Raises CorruptArchiveError.
    """
    logs = list(of_segments(key, segments))
    sealed = max((each.end for each in logs), default=-1)
    logs += of_pieces(each for each in pieces if each.base >= sealed)
    return [each for each in logs if each.end > start and each.base < end]


def check_joined(logs: list[RestoredLog], start: int, end: int, where: str) -> None:
    """Check that the logs together have all offsets from `start` on, below `end`. Raises CorruptArchiveError,
    which names the object `where`.
    """
    at = start
    for each in logs:
        if each.name > at:
            raise CorruptArchiveError(where, f"offsets {at} to {each.name - 1} are missing")
        at = each.end
    if at < end:
        raise CorruptArchiveError(where, f"offsets {at} to {end - 1} are missing")
