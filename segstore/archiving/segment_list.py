"""`SegmentList`: all archived segments of a partition, including those that have left the partition's log.

Each version of the list is an object of its own, one line with a CRC. The next version is written when a
segment is added or retired. Threads: any; a list does not change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from segstore.archiving.object_names import SEGMENTS, PartitionObject, TopicIdPartition
from segstore.archiving.pieces import ArchivedSegment, segment_of
from segstore.errors import CorruptArchiveError
from segstore.storage.meta.framed import frame, unframe

if TYPE_CHECKING:
    from segstore.archiving.chain import Objects
    from segstore.archiving.state import ArchivedPartition

FORMAT = 1


@dataclass(frozen=True)
class SegmentList:
    """The segments of a partition, ordered by base offset and then by `since`. `starts` has the log start
    offsets, as (time in ms, offset from that time on), ordered by time.
    """

    key: TopicIdPartition
    version: int = 0
    segments: tuple[ArchivedSegment, ...] = ()
    starts: tuple[tuple[int, int], ...] = ()

    def object(self, upload: str) -> str:
        """Return the name of this version's object."""
        return str(PartitionObject(self.key, self.version, upload, SEGMENTS))

    @property
    def current(self) -> tuple[ArchivedSegment, ...]:
        """Return the segments that are in the log, in the order of their offsets."""
        return tuple(each for each in self.segments if each.until is None)

    @property
    def readable(self) -> tuple[ArchivedSegment, ...]:
        """Return the segments that can be read as one log: the segments in the log, and before them the
        segments that retention removed.
        """
        kept = list(self.current)
        first = kept[0].base if kept else None
        before = [each for each in self.segments if each.retired == "retention"]
        for each in sorted(before, key=lambda it: (it.end, it.since), reverse=True):
            if first is None or each.end <= first:
                kept.insert(0, each)
                first = each.base
        return tuple(kept)

    def at(self, time: int) -> tuple[ArchivedSegment, ...]:
        """Return the segments that were in the log at a time (ms), and after them later segments with higher
        offsets.

        If compaction has replaced a segment since that time, the replaced segment is returned only if the
        archive still has it. Two neighbouring segments may overlap: the second segment's records below the
        end of the first segment must be ignored.
        """
        then = [each for each in self.segments if each.in_log_at(time)]
        end = max((each.end for each in then), default=0)
        while later := [each for each in self.segments if each.since > time and each.end > end]:
            joining = [each for each in later if each.base <= end]
            # The earliest of these segments has the most records, because later segments with the same base
            # offset were compacted.
            found = min(
                joining or later, key=lambda it: (it.since, -it.base) if joining else (it.base, it.since)
            )
            then.append(found)
            end = found.end
        return tuple(then)

    def start_at(self, time: int) -> int:
        """Return the log start offset at a time (ms), or the first known offset if the time is earlier."""
        known = [start for since, start in self.starts if since <= time]
        return known[-1] if known else (self.starts[0][1] if self.starts else 0)

    def next_version(
        self, segments: Iterable[ArchivedSegment], starts: Iterable[tuple[int, int]]
    ) -> SegmentList:
        """Return the next version of the list, with these segments and log start offsets."""
        found = tuple(sorted(segments, key=lambda each: (each.base, each.since)))
        return replace(self, version=self.version + 1, segments=found, starts=tuple(starts))

    def to_bytes(self) -> bytes:
        """Return the content of the list's object."""
        return frame(
            {
                "format": FORMAT,
                "topic": self.key.topic,
                "topic_id": self.key.topic_id,
                "partition": self.key.partition,
                "version": self.version,
                "segments": [each.to_json() for each in self.segments],
                "starts": [list(each) for each in self.starts],
            }
        )


def parse_segment_list(data: bytes, name: str) -> SegmentList:
    """Return the list in an object. Raises CorruptArchiveError, which names the object."""
    try:
        held = unframe(data)
        if held["format"] != FORMAT:
            raise ValueError(f"format {held['format']!r} is unknown: a newer segstore wrote it")
        key = TopicIdPartition(str(held["topic"]), str(held["topic_id"]), int(held["partition"]))
        segments = tuple(map(segment_of, held["segments"]))
        starts = tuple((int(since), int(start)) for since, start in held["starts"])
        return SegmentList(key, int(held["version"]), segments, starts)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptArchiveError(name, f"no list of segments: {error}") from None


def read_segments(objects: Objects, archived: ArchivedPartition) -> SegmentList:
    """Return the list of a partition's segments, or an empty list if no segment is sealed. Raises
    CorruptArchiveError.
    """
    name = archived.segments
    if name is None:
        return SegmentList(archived.key)
    try:
        listed = parse_segment_list(objects.read(name), name)
    except FileNotFoundError:
        raise CorruptArchiveError(name, "it is missing") from None
    if listed.key != archived.key:
        raise CorruptArchiveError(name, f"it lists segments of {listed.key}, not of {archived.key}")
    return listed
