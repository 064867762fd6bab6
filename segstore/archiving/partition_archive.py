"""`PartitionArchive`: the facts about a partition that an archiver has in memory, and that are not in the
archive's own state.

Nothing is on disk. Threads: the archiver's thread writes; other threads only read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from segstore.archiving.object_names import TopicIdPartition
from segstore.archiving.pieces import ArchivedSegment, Source
from segstore.archiving.segment_list import SegmentList
from segstore.storage.meta.published_ends import Ends


@dataclass
class PartitionArchive:
    """An archiver's facts about a partition.

    `listed` is the newest list of segments. `inodes` maps base offsets of segments to the inodes of the log
    files from which pieces were read. `ready` maps (base offset, source) to an uploaded segment that is not
    in a list yet. `flying` has (base offset, source) of each segment whose upload is running. `ends` are the
    archived ends, or None if the next `Archiver.tick` must plan the partition again.
    """

    key: TopicIdPartition
    listed: SegmentList
    ends: Ends | None = None
    inodes: dict[int, int] = field(default_factory=dict)
    ready: dict[tuple[int, Source], ArchivedSegment] = field(default_factory=dict)
    flying: set[tuple[int, Source]] = field(default_factory=set)
    epochs: tuple[tuple[int, int], ...] = ()
    epoch: int | None = None
    """The leader epoch of the log when `epochs` were read, or None if they must be read again."""
