"""`PartitionArchive`: what an archiver has in memory of a partition beside the archive's state.

Nothing is on disk. Threads: the archiver's; others read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from segstore.archiving.object_names import TopicIdPartition
from segstore.archiving.pieces import ArchivedSegment, Source
from segstore.archiving.segment_list import SegmentList
from segstore.storage.meta.published_ends import Ends


@dataclass
class PartitionArchive:
    """`listed` is the newest list; `inodes` has the file of each segment that pieces were read from, `ready`
    the segments that were uploaded and are in no list, `flying` those that are being uploaded; both by base
    offset and source. `ends` are what the archive has, None if the next tick is to look.
    """

    key: TopicIdPartition
    listed: SegmentList
    ends: Ends | None = None
    inodes: dict[int, int] = field(default_factory=dict)
    ready: dict[tuple[int, Source], ArchivedSegment] = field(default_factory=dict)
    flying: set[tuple[int, Source]] = field(default_factory=set)
    epochs: tuple[tuple[int, int], ...] = ()
    epoch: int | None = None
    """The leader epoch at which `epochs` were read."""
