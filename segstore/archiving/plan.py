"""`plan_partition`: plans the work of one `Archiver.tick` for a partition, from the list of its segments.

No log is read, and nothing is on disk. Threads: any; values and functions without state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from segstore.archiving.object_names import TopicIdPartition
from segstore.archiving.pieces import ArchivedPiece, ArchivedSegment, Source
from segstore.archiving.segment_list import SegmentList
from segstore.archiving.uploads import SealedSegment
from segstore.storage.meta.published_ends import Ends
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.segment import Segment as LocalSegment

MOST_IN_PIECES = 64 << 20
"""If the archive lacks more bytes of a partition than this, sealed segments are uploaded before the commit,
and not copied into pieces.
"""

Ready = Mapping[tuple[int, Source], ArchivedSegment]
"""Maps (base offset, source) to a segment that is archived as a whole."""


class SegmentRead(NamedTuple):
    """The bytes of a segment's log from `position` on, below `size`, which go into a piece."""

    local: LocalSegment
    position: int
    size: int


class PartitionPlan(NamedTuple):
    """The work of one `Archiver.tick` for a partition. `lost` are pieces whose file has left the log. `first`
    are the segments to upload before the commit. `later` are the segments whose upload begins after the
    commit; no call of `tick` waits for these uploads.
    """

    key: TopicIdPartition
    view: LogView
    ends: Ends
    start: int
    sealed: tuple[SealedSegment, ...]
    lost: tuple[ArchivedPiece, ...]
    first: tuple[SealedSegment, ...]
    later: tuple[SealedSegment, ...]


def sealed_of(key: TopicIdPartition, view: LogView, high_watermark: int) -> tuple[SealedSegment, ...]:
    """Return the sealed segments of a log that are below its high watermark."""
    return tuple(
        SealedSegment(key, local, end, local.final_size)
        for local, end in zip(view.segments, view.bases[1:], strict=False)
        if end <= high_watermark
    )


def plan_partition(
    key: TopicIdPartition,
    view: LogView,
    ends: Ends,
    listed: SegmentList,
    pieces: tuple[ArchivedPiece, ...],
    inodes: Mapping[int, int],
    ready: Ready,
) -> PartitionPlan:
    """Return the plan of a partition. `inodes` maps base offsets of segments to the inodes of the log files
    from which pieces were read. `ready` has the uploaded segments that are not in the list yet.
    """
    sealed = sealed_of(key, view, ends.high_watermark)
    lost = _lost(view, pieces, inodes)
    have = ready.keys() | {(each.base, each.source) for each in listed.current}
    missing = [each for each in sealed if (each.local.base_offset, each.source) not in have]
    tail = _tail(view, listed, pieces[len(lost) :])
    at_once = bool(lost) or not pieces or _tail_bytes(view, tail) > MOST_IN_PIECES
    begin = pieces[0].base if pieces and not lost else _listed_end(listed)
    first = [each for each in missing if at_once and each.end > begin]
    later = [each for each in missing if each not in first]
    start = min(max(ends.start, view.start_offset), ends.high_watermark)
    return PartitionPlan(key, view, ends, start, sealed, lost, tuple(first), tuple(later))


def readings(
    plan: PartitionPlan, listed: SegmentList, pieces: tuple[ArchivedPiece, ...]
) -> list[SegmentRead]:
    """Return the bytes to read into new pieces: those after the segments of `listed` and after `pieces`."""
    base, position = _tail(plan.view, listed, pieces)
    found = []
    for slot, local in enumerate(plan.view.segments):
        if local.base_offset >= base and local.base_offset <= plan.ends.high_watermark:
            at = position if local.base_offset == base else 0
            size = plan.view.end_of(slot)
            if at < size:
                found.append(SegmentRead(local, at, size))
    return found


def current_segments(plan: PartitionPlan, listed: SegmentList, ready: Ready) -> list[ArchivedSegment]:
    """Return the segments that are the archive's log from now on, without overlaps: the store's uploaded
    segments, and older archived segments between them.

    An uploaded segment is left out until the segments before it are uploaded. An uploaded segment that would
    replace only a part of an older segment is left out until its neighbours are uploaded, too.
    """
    old = [each for each in listed.current if each.end > plan.view.bases[0]]
    known = {(each.base, each.source): each for each in old} | dict(ready)
    new = [
        segment._replace(until=None, retired=None)
        for each in plan.sealed
        if (segment := known.get((each.local.base_offset, each.source))) is not None
    ]
    while halved := _halved(old, new):
        new = [each for each in new if not any(_overlap(each, other) for other in halved)]
    taken = {_offsets(each) for each in new}
    others = [each for each in new if _offsets(each) not in {_offsets(one) for one in old}]
    kept = [each for each in old if _offsets(each) not in taken and not _covered(each, others)]
    return _joined(sorted(new + kept, key=lambda each: each.base), kept, plan.view.bases[0])


def _joined(
    segments: list[ArchivedSegment], kept: Collection[ArchivedSegment], begin: int
) -> list[ArchivedSegment]:
    """Return `segments` without the uploaded segments that follow a gap: they must wait until the offsets in
    the gap, which are still in pieces, are uploaded, too. `kept` are segments that always stay.
    """
    found, old = list[ArchivedSegment](), {_offsets(each) for each in kept}
    for each in segments:
        if each.base <= begin or _offsets(each) in old:
            found.append(each)
            begin = max(begin, each.end)
    return found


def _halved(old: Collection[ArchivedSegment], new: Collection[ArchivedSegment]) -> list[ArchivedSegment]:
    """Return the old segments that new segments cover only in part."""
    before, after = {_offsets(each) for each in old}, {_offsets(each) for each in new}
    others = [each for each in new if _offsets(each) not in before]
    return [
        each
        for each in old
        if _offsets(each) not in after and 0 < _covered(each, others) < each.end - each.base
    ]


def _offsets(segment: ArchivedSegment) -> tuple[int, int]:
    return segment.base, segment.end


def _overlap(one: ArchivedSegment, other: ArchivedSegment) -> int:
    return max(min(one.end, other.end) - max(one.base, other.base), 0)


def _covered(segment: ArchivedSegment, others: Collection[ArchivedSegment]) -> int:
    """Return the number of a segment's offsets that are also in `others`. The segments of `others` must not
    overlap.
    """
    return sum(_overlap(segment, each) for each in others)


def retired(
    listed: SegmentList, current: Collection[ArchivedSegment], plan: PartitionPlan, time: int
) -> list[ArchivedSegment]:
    """Return the segments of the next list: those of `current`, and all segments that have left the log."""
    kept = {(each.base, each.source, each.upload) for each in current}
    gone = []
    for each in listed.segments:
        if each.until is not None:
            gone.append(each)
        elif (each.base, each.source, each.upload) not in kept:
            why = "retention" if each.end <= plan.view.bases[0] else "replaced"
            gone.append(each.retire(time, why))
    return [*gone, *current]


def _listed_end(listed: SegmentList) -> int:
    current = listed.current
    return current[-1].end if current else -1


def _tail(view: LogView, listed: SegmentList, pieces: tuple[ArchivedPiece, ...]) -> tuple[int, int]:
    """Return the position of the first byte that the archive lacks, as (base offset of the segment, byte)."""
    end = _listed_end(listed)
    if pieces and pieces[-1].base >= end:
        return pieces[-1].base, pieces[-1].position + pieces[-1].length
    return max(end, view.bases[0]), 0


def _lost(
    view: LogView, pieces: tuple[ArchivedPiece, ...], inodes: Mapping[int, int]
) -> tuple[ArchivedPiece, ...]:
    """Return the pieces up to and including the last piece whose file has left the log."""
    there = {each.base_offset: each.identity[0] for each in view.segments if each.identity}
    gone = [n for n, each in enumerate(pieces) if there.get(each.base, -1) != inodes.get(each.base, -2)]
    return pieces[: gone[-1] + 1] if gone else ()


def _tail_bytes(view: LogView, tail: tuple[int, int]) -> int:
    base, position = tail
    sizes = (view.end_of(slot) for slot, each in enumerate(view.bases) if each >= base)
    return sum(sizes) - position
