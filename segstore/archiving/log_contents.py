"""`LogContents`: the archived contents of one partition's log: ranges of objects (extents), in the order of
offsets.

Nothing is on disk: a `LogContents` is made of the archive's state and of the list of segments that the state
names. Spark pickles a `LogContents`, or a `part` of one, and sends it to tasks. Threads: any; values that do
not change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from segstore import names
from segstore.archiving.object_names import TopicIdPartition
from segstore.archiving.pieces import ArchivedPiece, ArchivedSegment
from segstore.archiving.segment_list import SegmentList
from segstore.archiving.state import ArchivedPartition
from segstore.leader_epochs import LeaderEpochCache
from segstore.replication.observed_log import OffsetAndEpoch, agreed_in, position_in

AHEAD = 2
"""A `part` also has this many extents after its end offset. They mostly contain the markers of its last
transactions.
"""


class Extent(NamedTuple):
    """Whole batches in `object`: `length` bytes from byte `at` on, with offsets from `first` on, below `end`.
    If the extent is a whole sealed segment, `segment` is set; the segment may have indexes.
    """

    object: str
    at: int
    length: int
    first: int
    end: int
    max_timestamp: int
    segment: ArchivedSegment | None = None


@dataclass(frozen=True)
class LogContents:
    """The log of the partition `key` in an archive. Offsets from `start` to `end` - 1 can be read; `end` is
    the high watermark. `stable` is the last stable offset, or -1 if it is not known. Compaction may have left
    gaps below `gaps_end`, or anywhere if `gaps_end` is -1. `is_part` is True if some extents of the log are
    left out.
    """

    key: TopicIdPartition
    extents: tuple[Extent, ...]
    start: int
    end: int
    stable: int
    epochs: tuple[tuple[int, int], ...]
    gaps_end: int
    is_part: bool = False

    @cached_property
    def _ends(self) -> list[int]:
        return [each.end for each in self.extents]

    @cached_property
    def _epochs(self) -> LeaderEpochCache:
        return LeaderEpochCache(self.epochs)

    def after(self, offset: int) -> Extent | None:
        """Return the extent that contains `offset`. If there is none, return the first extent after `offset`,
        or None if no extent follows.
        """
        slot = bisect_right(self._ends, offset)
        return self.extents[slot] if slot < len(self.extents) else None

    def has(self, name: str) -> bool:
        """Return whether an extent is in the object `name`."""
        return any(each.object == name for each in self.extents)

    def part(self, start: int, end: int) -> LogContents:
        """Return the part of the contents that is needed to read the offsets from `start` on, below `end`."""
        first, last = bisect_right(self._ends, start), bisect_right(self._ends, max(end - 1, start))
        found = self.extents[first : last + 1 + AHEAD]
        is_part = self.is_part or len(found) < len(self.extents)
        return replace(self, extents=found, is_part=is_part)

    # --- leader epochs --------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Return the latest leader epoch of the log, or -1 if it has none."""
        return self._epochs.current

    def position(self, offset: int) -> OffsetAndEpoch:
        """Return an offset with the leader epoch of the record before this offset, or with -1 if that epoch
        is not known.
        """
        return position_in(self._epochs, self.end, offset)

    def agreed(self, position: OffsetAndEpoch) -> int:
        """Return the offset below which this log certainly has the same records as the log that `position`
        was taken from. The result is at most the offset in `position`.
        """
        return agreed_in(self._epochs, self.end, position)


def contents_of(partition: ArchivedPartition, listed: SegmentList, gaps_end: int) -> LogContents:
    """Return the contents of a partition of an archive's state; `listed` is the list that the partition
    names.
    """
    found = list(_extents(partition, listed))
    retired = any(each.until is not None for each in listed.readable)
    first = found[0].first if found else partition.end
    return LogContents(
        partition.key,
        tuple(found),
        first if retired else min(max(first, partition.start), partition.end),
        partition.end,
        partition.stable,
        partition.epochs,
        gaps_end,
    )


def _extents(partition: ArchivedPartition, listed: SegmentList) -> Iterable[Extent]:
    for each in listed.readable:
        if each.size:
            name = each.object(partition.key, names.LOG)
            yield Extent(name, 0, each.size, each.base, each.end, each.max_timestamp, each)
    for piece in partition.pieces:
        yield _of_piece(piece)


def _of_piece(piece: ArchivedPiece) -> Extent:
    return Extent(piece.object, piece.at, piece.length, piece.first, piece.end, piece.max_timestamp)
