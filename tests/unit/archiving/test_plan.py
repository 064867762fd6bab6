"""`current_segments`: which segments an archive's log has while those of the store come one by one."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest

from segstore import names
from segstore.archiving.object_names import TopicIdPartition
from segstore.archiving.pieces import ArchivedSegment
from segstore.archiving.plan import PartitionPlan, current_segments
from segstore.archiving.segment_list import SegmentList
from segstore.archiving.uploads import SealedSegment

KEY = TopicIdPartition("t", "", 0)


def _segment(base: int, end: int, inode: int) -> ArchivedSegment:
    return ArchivedSegment(base, end, f"{inode}", {names.LOG: (1, 0)}, -1, 0, source=(inode, 0, 0))


CASES = {
    # name: (in the list, in the store, of these uploaded, what the archive's log has)
    "all new": ([], [(0, 10, 1), (10, 20, 2)], {1, 2}, [1, 2]),
    "the second of two new ones came first": ([], [(0, 10, 1), (10, 20, 2)], {2}, []),
    "the third came before the second": ([(0, 10, 1)], [(0, 10, 1), (10, 20, 2), (20, 30, 3)], {3}, [1]),
    "all are there": ([(0, 10, 1), (10, 20, 2)], [(0, 10, 1), (10, 20, 2)], set(), [1, 2]),
    "one more": ([(0, 10, 1)], [(0, 10, 1), (10, 20, 2)], {2}, [1, 2]),
    "retention": ([(0, 10, 1), (10, 20, 2)], [(10, 20, 2)], set(), [2]),
    "compacted, not uploaded": ([(0, 10, 1), (10, 20, 2)], [(0, 20, 3)], set(), [1, 2]),
    "compacted and uploaded": ([(0, 10, 1), (10, 20, 2)], [(0, 20, 3)], {3}, [3]),
    "each compacted, the second uploaded": (
        [(0, 10, 1), (10, 20, 2)],
        [(0, 10, 3), (10, 20, 4)],
        {4},
        [1, 4],
    ),
    "merged below, not uploaded, and a new one behind that lost its pieces": (
        [(0, 10, 1), (10, 20, 2)],
        [(0, 20, 3), (20, 30, 4)],
        {4},
        [1, 2, 4],
    ),
    "a new one that has a half of an old one waits": (
        [(0, 10, 1), (10, 30, 2)],
        [(0, 20, 3), (20, 30, 4)],
        {3},
        [1, 2],
    ),
    "both halves": ([(0, 10, 1), (10, 30, 2)], [(0, 20, 3), (20, 30, 4)], {3, 4}, [3, 4]),
    "one that waits has others wait that join it within an old one": (
        [(0, 10, 1), (10, 30, 2), (30, 40, 5)],
        [(0, 10, 1), (10, 20, 3), (20, 40, 4)],
        {4},
        [1, 2, 5],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_segments_join(name: str) -> None:
    listed, there, uploaded, expected = CASES[name]
    local = [SimpleNamespace(base_offset=base, identity=(inode, 0, 0)) for base, _, inode in there]
    sealed = tuple(
        SealedSegment(KEY, each, end, 1)  # type: ignore[arg-type]
        for each, (_, end, _) in zip(local, there, strict=True)
    )
    view = SimpleNamespace(bases=(*(base for base, _, _ in there), there[-1][1]))
    plan = PartitionPlan(KEY, view, None, 0, sealed, (), (), ())  # type: ignore[arg-type]
    known = tuple(_segment(*each) for each in listed)
    ready = {
        (each.base, each.source): each for each in (_segment(*one) for one in there if one[2] in uploaded)
    }
    found = current_segments(plan, SegmentList(KEY, 1, known), ready)
    assert [each.source[0] for each in found] == expected
    assert all(one.end == other.base for one, other in pairwise(found))
