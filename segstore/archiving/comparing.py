"""`compare`: finds the offset up to which a store's log agrees with the archived log.

First, leader epochs are compared: they differ if the log has diverged, because each opening of a store begins
a new epoch. Then files are compared. A sealed segment is the same if its file is still the file that was
archived (`source`), or if its CRC is the same. A piece is the same if its CRC is the same. Files are only
read. Threads: any; functions without state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from segstore import names
from segstore.archiving.object_names import parse_partition_object
from segstore.archiving.pieces import ArchivedPiece, ArchivedSegment, source_of
from segstore.archiving.segment_list import SegmentList
from segstore.archiving.state import ArchivedPartition
from segstore.archiving.stretches import LogFile, crc_of_file
from segstore.files import Files
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.segment import Segment as LocalSegment

Epochs = Sequence[tuple[int, int]]


class Compared(NamedTuple):
    """The result of a comparison. Archive and log agree below the offset `common`. If `common` is below the
    archive's end, `listed` and `partition` end at that offset, and `is_cut` is True. `inodes` has, for each
    segment's base offset, the inode of the store's log file that has the pieces.
    """

    partition: ArchivedPartition
    listed: SegmentList
    inodes: dict[int, int]
    common: int
    is_cut: bool


def compare(
    files: Files,
    partition: ArchivedPartition,
    listed: SegmentList,
    view: LogView,
    epochs: Epochs,
    compacted: bool,
) -> Compared:
    """Compare an archived partition with the store's log, which ends at the end of `view`. If the log is
    `compacted`, a segment that differs counts as compacted after it was archived, not as diverged. Raises
    OSError.
    """
    common = min(same_epochs_end(partition, epochs, view), partition.end)
    local = {each.base_offset: each for each in view.segments}
    segments, common = _compared_segments(files, listed, view, local, common, compacted)
    pieces, inodes, common = _compared_pieces(files, partition.pieces, view, local, common, compacted)
    is_cut = common < partition.end
    if is_cut:
        segments, common = _cut(segments, pieces, common)
        pieces = tuple(each for each in pieces if each.end <= common)
        kept = tuple(each for each in partition.epochs if each[1] < common)
        partition = replace(
            partition, pieces=pieces, end=common, start=min(partition.start, common),
            stable=min(partition.stable, common), epochs=kept,
        )  # fmt: skip
    if segments != listed.segments:
        listed = listed.next_version(segments, listed.starts)
    return Compared(partition, listed, inodes, common, is_cut)


def lost(partition: ArchivedPartition, view: LogView) -> Compared:
    """Return the comparison of a partition whose list of segments is lost: an entry without segments and
    pieces. The next list has a higher version than the lost list, and so a new name.
    """
    named = parse_partition_object(partition.segments or "")
    listed = SegmentList(partition.key, 0 if named is None else named.number)
    begins = view.bases[0]
    cut = replace(partition, segments=None, pieces=(), start=begins, end=begins, stable=begins, epochs=())
    return Compared(cut, listed.next_version((), ()), {}, begins, True)


def same_epochs_end(partition: ArchivedPartition, epochs: Epochs, view: LogView) -> int:
    """Return the offset up to which archive and log have the same leader epochs. It is at most the smaller of
    the two end offsets.
    """
    end = min(partition.end, view.end_offset)
    start = max(partition.start, view.start_offset)
    if not epochs or not partition.epochs:
        return end
    edges = sorted({start, *(at for _, at in (*epochs, *partition.epochs) if start < at < end)})
    for edge in edges:
        if edge < end and _epoch_at(epochs, edge) != _epoch_at(partition.epochs, edge):
            return edge
    return end


def _epoch_at(epochs: Epochs, offset: int) -> int:
    return max((epoch for epoch, start in epochs if start <= offset), default=-1)


def _compared_segments(
    files: Files,
    listed: SegmentList,
    view: LogView,
    local: dict[int, LocalSegment],
    common: int,
    compacted: bool,
) -> tuple[tuple[ArchivedSegment, ...], int]:
    found: list[ArchivedSegment] = []
    for each in listed.segments:
        there = local.get(each.base)
        if each.until is not None or each.end <= view.bases[0]:
            found.append(each)
        elif there is not None and there.sealed and (same := _same_segment(files, each, there)) is not None:
            found.append(same)
        else:
            found.append(each)
            if not compacted:
                common = min(common, each.base)
    return tuple(found), common


def _same_segment(files: Files, segment: ArchivedSegment, there: LocalSegment) -> ArchivedSegment | None:
    """Return a segment's entry, with the store's file as its `source`, if the log has the segment's bytes.
    Return None if the log differs.
    """
    source = source_of(there.identity)
    if there.final_size != segment.size:
        return None
    if segment.source == source:
        return segment
    log = LogFile(files, there.handle, there.path)
    if crc_of_file(log, 0, segment.size) != segment.files[names.LOG][1]:
        return None
    return segment._replace(source=source)


def _compared_pieces(
    files: Files,
    pieces: tuple[ArchivedPiece, ...],
    view: LogView,
    local: dict[int, LocalSegment],
    common: int,
    compacted: bool,
) -> tuple[tuple[ArchivedPiece, ...], dict[int, int], int]:
    """Return (the pieces before the first piece that the log does not have, {base offset: inode} of their
    files, common offset).
    """
    inodes: dict[int, int] = {}
    for number, each in enumerate(pieces):
        there = local.get(each.base)
        if there is not None and each.end <= common and _has(files, there, each):
            inodes[each.base] = there.identity[0]
        # A piece whose segment was removed by retention or compaction is kept, but no inode is returned for
        # it.
        elif each.end > view.bases[0] and not (compacted and (there is None or there.sealed)):
            return pieces[:number], inodes, min(common, each.first)
    return pieces, inodes, common


def _has(files: Files, there: LocalSegment, piece: ArchivedPiece) -> bool:
    if not there.identity:
        return False
    log = LogFile(files, there.handle, there.path)
    return crc_of_file(log, piece.position, piece.length) == piece.crc


def _cut(
    segments: tuple[ArchivedSegment, ...], pieces: tuple[ArchivedPiece, ...], common: int
) -> tuple[tuple[ArchivedSegment, ...], int]:
    """Drop the segments that are in the log and end above `common`. Return (the other segments; the end of
    the log that is left in the archive, at most `common`).
    """
    kept = tuple(each for each in segments if each.until is not None or each.end <= common)
    ends = [each.end for each in kept if each.until is None]
    ends += [each.end for each in pieces if each.end <= common]
    begins = [each.base for each in segments if each.until is None] + [each.base for each in pieces]
    return kept, max(ends, default=min([common, *begins]))
