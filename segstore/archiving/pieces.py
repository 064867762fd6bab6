"""The parts of a log in an archive: sealed segments, and pieces of segments that are not archived as a whole
yet.

Nothing is on disk: the classes are entries of the archive's lists of segments and commits. Threads: any;
values that do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from segstore import names
from segstore.archiving.object_names import PartitionObject, TopicIdPartition

Source = tuple[int, int, int]
"""Inode, size, and time of change (ns) of a file of the store. They distinguish the file from a later file
with the same name. Inode and time are both needed, because the log cleaner keeps the time, and file systems
reuse inodes.
"""


def source_of(identity: Iterable[int]) -> Source:
    """Return the source from a result of `Files.identity`. Raises TypeError, ValueError."""
    inode, size, changed = identity
    return int(inode), int(size), int(changed)


class ArchivedSegment(NamedTuple):
    """A sealed segment, with offsets from `base` on, below `end`. `files` maps the suffix of each file to
    (size in bytes, CRC-32C). `max_timestamp` is the largest timestamp of its records (ms), or -1 if no record
    has a timestamp.

    `since` is the time (ms) at which the archiver first saw the segment in the log. `until` is the time at
    which the archiver saw that the segment had left the log, or None if it is in the log. `retired` is the
    reason: "retention" if the log then started after the segment, "replaced" if compaction or an unclean
    recovery put other segments in its place. `source` identifies the file of the store that was read.
    """

    base: int
    end: int
    upload: str
    files: Mapping[str, tuple[int, int]]
    max_timestamp: int
    since: int
    until: int | None = None
    retired: str | None = None
    source: Source = (0, 0, 0)

    def object(self, key: TopicIdPartition, suffix: str) -> str:
        """Return the name of the object that has one of the segment's files."""
        return str(PartitionObject(key, self.base, self.upload, suffix))

    @property
    def size(self) -> int:
        """Return the size of the segment's log in bytes."""
        return self.files[names.LOG][0]

    def retire(self, until: int, why: str) -> ArchivedSegment:
        """Return the segment's entry with `until` and `retired`, because the segment has left the log."""
        return self._replace(until=until, retired=why)

    def in_log_at(self, time: int) -> bool:
        """Return whether the log had the segment at a time (ms)."""
        return self.since <= time and (self.until is None or time < self.until)

    def to_json(self) -> dict[str, Any]:
        """Return the entry as JSON values, for `segment_of`."""
        held: dict[str, Any] = {
            "base": self.base,
            "end": self.end,
            "upload": self.upload,
            "files": {suffix: list(each) for suffix, each in self.files.items()},
            "max_timestamp": self.max_timestamp,
            "since": self.since,
            "source": list(self.source),
        }
        if self.until is not None:
            held |= {"until": self.until, "retired": self.retired}
        return held


def segment_of(held: Mapping[str, Any]) -> ArchivedSegment:
    """Return the segment that an entry (`ArchivedSegment.to_json`) describes. Raises KeyError, TypeError,
    ValueError.
    """
    files = {str(suffix): (int(size), int(crc)) for suffix, (size, crc) in held["files"].items()}
    if names.LOG not in files:
        raise ValueError("a segment without a log")
    until = held.get("until")
    return ArchivedSegment(
        int(held["base"]),
        int(held["end"]),
        str(held["upload"]),
        files,
        int(held["max_timestamp"]),
        int(held["since"]),
        None if until is None else int(until),
        None if until is None else str(held["retired"]),
        source_of(held["source"]),
    )


class ArchivedPiece(NamedTuple):
    """A stretch of a segment's log within a commit or a state. The piece is `length` bytes from byte `at` of
    `object` on; in the segment with base offset `base` these bytes begin at byte `position`. They are whole
    batches, with offsets from `first` on, below `end`.
    """

    object: str
    at: int
    length: int
    crc: int
    base: int
    position: int
    first: int
    end: int
    max_timestamp: int

    def to_json(self) -> list[Any]:
        """Return the entry as JSON values, for `piece_of`."""
        return list(self)


def piece_of(held: Any) -> ArchivedPiece:
    """Return the piece that an entry (`ArchivedPiece.to_json`) describes. Raises TypeError, ValueError."""
    name, *numbers = held
    if not isinstance(name, str):
        raise TypeError(f"the name of an object is expected, not {name!r}")
    at, length, crc, base, position, first, end, max_timestamp = map(int, numbers)
    return ArchivedPiece(name, at, length, crc, base, position, first, end, max_timestamp)
