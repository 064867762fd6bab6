"""`SegmentList.at`: which segments hold the log as it was at a time."""

from __future__ import annotations

import pytest

from segstore.archiving.object_names import TopicIdPartition
from segstore.archiving.pieces import ArchivedSegment
from segstore.archiving.segment_list import SegmentList

KEY = TopicIdPartition("t", "", 0)


def segment(
    base: int, end: int, since: int, until: int | None = None, why: str = "replaced"
) -> ArchivedSegment:
    made = ArchivedSegment(base, end, f"{base}-{since}", {".log": (1, 1)}, 0, since)
    return made if until is None else made.retire(until, why)


APPENDED = (segment(0, 10, 1), segment(10, 20, 2), segment(20, 30, 3))
REPLACED = (
    *(segment(0, 10, 1, 5), segment(10, 20, 2, 5), segment(0, 20, 5, 8)),
    *(segment(20, 30, 6, 8), segment(0, 30, 8)),
)
NEVER_ALONE = (segment(0, 10, 1, 5), segment(0, 20, 5, 8), segment(0, 30, 8))
"""What was appended behind offset 10 was archived only together with what is before it."""
DELETED = (segment(0, 10, 1, 4, "retention"), segment(10, 20, 2, 6, "retention"), segment(20, 30, 3))
CASES: dict[str, tuple[tuple[ArchivedSegment, ...], int, list[str]]] = {
    "before all": (APPENDED, 0, ["0-1", "10-2", "20-3"]),
    "some are later": (APPENDED, 1, ["0-1", "10-2", "20-3"]),
    "before a compaction": (REPLACED, 4, ["0-1", "10-2", "20-6"]),
    "between two": (REPLACED, 5, ["0-5", "20-6"]),
    "behind both": (REPLACED, 8, ["0-8"]),
    "before all, compacted since": (REPLACED, 0, ["0-1", "10-2", "20-6"]),
    "a segment that joins by its end": (NEVER_ALONE, 4, ["0-1", "0-5", "0-8"]),
    "before a deletion": (DELETED, 3, ["0-1", "10-2", "20-3"]),
    "behind one": (DELETED, 4, ["10-2", "20-3"]),
    "behind both deletions": (DELETED, 6, ["20-3"]),
    "behind a hole": ((segment(0, 10, 1), segment(15, 20, 2)), 1, ["0-1", "15-2"]),
}


@pytest.mark.parametrize("name", CASES)
def test_segments_at_a_time(name: str) -> None:
    segments, time, expected = CASES[name]
    listed = SegmentList(KEY).next_version(segments, ())
    assert [each.upload for each in listed.at(time)] == expected
