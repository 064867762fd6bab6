"""Which neighbouring segments become one (Kafka: Cleaner.groupSegmentsBySize). Nothing on disk.

Threads: any; a function of a view.
"""

from __future__ import annotations

from collections.abc import Sequence

from segstore.config import TopicConfig
from segstore.index import OffsetIndex, TimeIndex
from segstore.storage.segment.segment import Segment

MOST_RELATIVE = 2**31 - 1  # offsets and positions in a segment are int32


def group(segments: Sequence[Segment], config: TopicConfig, until: int, most: int) -> list[list[Segment]]:
    """The segments in order, in groups whose logs and indexes together are as large as one may be.

    `until` is the offset that all of them lie below; `most` are in a group, all of whose files
    are open at once.
    """
    groups: list[list[Segment]] = []
    ends = [*(s.base_offset for s in segments[1:]), until] if segments else []
    room = (0, 0, 0)
    for segment, end in zip(segments, ends, strict=True):
        sizes = _sizes(segment)
        room = (room[0] - sizes[0], room[1] - sizes[1], room[2] - sizes[2])
        near = groups and (not segment.size or end - 1 - groups[-1][0].base_offset <= MOST_RELATIVE)
        if near and min(room) >= 0 and len(groups[-1]) < most:
            groups[-1].append(segment)
            continue
        groups.append([segment])
        limit = config.segment_index_bytes
        room = (config.segment_bytes - sizes[0], limit - sizes[1], limit - sizes[2])
    return groups


def _sizes(segment: Segment) -> tuple[int, int, int]:
    offsets, times = segment.indexes
    return segment.size, offsets.entries * OffsetIndex.ENTRY.size, times.entries * TimeIndex.ENTRY.size
