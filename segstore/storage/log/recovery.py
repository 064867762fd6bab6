"""Recovers a partition after an unclean shutdown.

On disk the log is cut, its indexes are rewritten, and the cut bytes are kept in `.segstore/quarantine`.
Threads: one, before the partition is used.

Before step 1, `open_partition` calls `segment_files.finish_renames`. If a crash has interrupted the swap of
compacted segments for old ones, that function finishes or undoes the swap.

1. Batches below the recovery point were synced, so they are not checked, and never cut. Damage below the
recovery point is bit rot, which readers report. 2. From the recovery point on every batch is checked,
including its CRC, and indexed anew. 3. The log ends at the first bytes that are no valid batch (torn, a hole
of zeros, a CRC that fails), or before a segment whose base offset does not follow the last offset. Later
bytes are copied to the quarantine if they hold whole batches; then later segments are removed, the last one
first; then the log is cut and synced. After a crash between these steps the next recovery finds the same
first bad batch. But if a batch ends at the base offset of the next segment, the bytes after that batch belong
to no record (A5). Then only those bytes are cut, and the log continues in the next segment. 4. If bytes below
the recovery point are missing, the log continues in a new segment at the recovery point, so that an offset
that was already durable is not assigned again. A replica's log is instead cut after its last whole batch, and
its leader sends the later records (R7). Empty segments at the end of a replica's log are removed if they
begin after a gap above the recovery point, because their bytes were lost, and their base offsets would make
other replicas believe that this replica still has those records (R41). 5. The new end is synced. The caller
begins a new leader epoch at that end, except in a replica.
"""

from __future__ import annotations

import bisect
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from segstore import names
from segstore._native import lib
from segstore.arrays import np
from segstore.config import TopicConfig
from segstore.errors import CorruptRecordError
from segstore.files import Files
from segstore.index.sparse import MOST_RELATIVE
from segstore.logger import Logger
from segstore.storage.segment import index_files
from segstore.storage.segment.active import ActiveSegment
from segstore.storage.segment.batch_scan import BAD, CHUNK, next_whole, walk, walk_past_damage
from segstore.storage.segment.quarantine import keep_batches
from segstore.storage.segment.segment import Segment
from segstore.storage.segment.segment_files import create_segment, remove_segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

log = Logger("segstore")


def end_of_batches(segment: Segment) -> tuple[int, int]:
    """Return the position and the offset after a segment's last batch. The index and the batch headers show
    them.
    """
    offsets = segment.indexes[0]
    position = offsets.entry(-1)[1] if offsets.entries else 0
    end = segment.base_offset
    files, handle, base = segment.pool.files, segment.handle, segment.base_offset
    for step in walk(files, handle, position, segment.final_size, check_crcs=False, least=base):
        end = step.end_offset or end
        position = step.stop.position
    return position, end


def last_whole(files: Files, directory: str, bases: list[int]) -> int:
    """Return the offset after the last batch with a valid CRC in the segments with these base offsets. If no
    batch has a valid CRC, return the first base offset. Raises OSError.
    """
    end = 0
    for end in reversed(bases):
        with files.open(os.path.join(directory, names.segment_file(end, names.LOG))) as handle:
            steps = walk_past_damage(files, handle, files.size(handle), check_crcs=True)
            ends = [step.end_offset for step in steps if step.end_offset is not None]
        if ends:
            return ends[-1]
    return end


@dataclass(frozen=True)
class Recovered:
    """The result of a partition's recovery. `cut_bytes` is 0 if nothing was cut from the log."""

    partition: str
    recovery_point: int
    end_offset: int
    cut_bytes: int = 0
    removed_segments: int = 0
    quarantined: tuple[str, ...] = ()
    reason: str = ""


class PartitionRecovery:
    """Recovers `segments` from `recovery_point` on. `load_segments` has returned the segments: all are marked
    as sealed, and have their files' sizes.
    """

    def __init__(
        self,
        segments: list[Segment],
        config: TopicConfig,
        recovery_point: int,
        quarantine: str,
        gaps_end: int,
        suspect: bool = False,
        replicated: bool = False,
    ) -> None:
        """Below `gaps_end` compaction may have left gaps between batches (-1: anywhere). `suspect`: a sync
        has failed, and the kernel may have marked unwritten pages clean. `replicated`: this is a replica's
        log, whose missing records the leader sends again.
        """
        self.suspect, self.replicated = suspect, replicated
        self.segments, self.config, self.recovery_point = segments, config, recovery_point
        self.quarantine, self.gaps_end = quarantine, gaps_end
        self.pool = segments[0].pool
        self.files: Files = self.pool.files
        self.directory = segments[0].directory
        self.name = self.directory.rpartition("/")[2]

    def run(self) -> Recovered:
        """Recover the partition, by steps 1 to 5 of the module's docstring. Raises OSError."""
        bases = [s.base_offset for s in self.segments]
        slot = max(bisect.bisect_right(bases, self.recovery_point) - 1, 0)
        end = self.segments[slot].base_offset
        done = Recovered(self.name, self.recovery_point, 0)
        while slot < len(self.segments):
            segment = self.segments[slot]
            if slot and self._is_hole(end, segment.base_offset):
                done = self._cut(
                    slot - 1, self.segments[slot - 1].size, end, "the next segment does not follow"
                )
                break
            below = bases[slot + 1] if slot + 1 < len(bases) else names.MAX_OFFSET
            valid, end, reason = self._recover_segment(segment, below)
            is_last = self.replicated and slot + 1 == len(self.segments)
            if valid < segment.final_size and end == below:
                self._cut_excess(segment, valid)
            elif valid < segment.final_size and (end >= self.recovery_point or is_last):
                done = self._cut(slot, valid, end, reason)
                break
            slot += 1
        if self.replicated:
            done, end = self._cut_gap(done, end)
        return self._finish(done, end)

    def _cut_gap(self, done: Recovered, end: int) -> tuple[Recovered, int]:
        """Remove the empty segments after a gap at the end of a replica's log (step 4). Return `done` and
        `end`, with new values if segments were removed.
        """
        slot = len(self.segments) - 1
        while slot and not self.segments[slot].final_size:
            slot -= 1
        last = self.segments[slot]
        if last is self.segments[-1]:
            return done, end
        behind = last.last_offset_before(last.size) + 1
        if not self.recovery_point <= behind < end:
            return done, end
        cut = self._cut(slot, last.final_size, behind, "the segments behind it are empty, and do not follow")
        if done.cut_bytes:
            removed = done.removed_segments + cut.removed_segments
            return replace(done, removed_segments=removed), behind
        return cut, behind

    def _is_hole(self, end: int, base: int) -> bool:
        return end < base and end >= self.recovery_point and 0 <= self.gaps_end <= end

    def _in_order(self, batches: NDArray[np.void], end: int, below: int) -> int:
        """Return the number of leading batches whose offsets can follow `end` and lie below `below`. A valid
        CRC does not prove that, because it does not cover the base offset.
        """
        bases, lasts = batches["base_offset"], batches["last_offset"]
        before = np.concatenate(([end], lasts[:-1] + 1))
        good = (bases >= before) & (lasts < below)
        if self.gaps_end >= 0:
            good &= (bases == before) | (before < max(self.gaps_end, self.recovery_point))
        return len(batches) if good.all() else int(good.argmin())

    def _recover_segment(self, segment: Segment, below: int) -> tuple[int, int, str]:
        """Check and index a segment from the recovery point on. Return the number of valid bytes, the offset
        after them, and the reason why they end.
        """
        start, end = self._start(segment)
        position = start
        size, reason = segment.final_size, ""
        active = self._reopened(segment, position, end)
        while position < size:
            for step in walk(self.files, segment.handle, position, size, check_crcs=True, least=end):
                batches = step.batches
                n = self._in_order(batches, end, below)
                if n:
                    active.index(batches[:n])
                    end = active.end.next_offset
                position, reason = step.stop.position, BAD.get(step.stop.status, "")
                if n < len(batches):
                    position, reason = int(batches["position"][n]), BAD[lib.SEG_BAD_OFFSETS]
                    break
            if position >= size or end >= self.recovery_point:
                break
            # Damage below the recovery point is bit rot, and the log continues after it. So the check also
            # continues after the damage.
            found = next_whole(self.files, segment.handle, position + 1, size, end)
            if found is None:
                break
            position = found
        active.trim()
        segment.size = size
        if start or below != names.MAX_OFFSET:
            segment.attach(None)
        # If the last segment was indexed from its start, `attach` is not called: the new indexes stay loaded.
        return position, end, reason

    def _reopened(self, segment: Segment, position: int, end: int) -> ActiveSegment:
        """Open a segment for appending after its first `position` bytes, which are valid. Return the
        ActiveSegment. If `position` is 0, the segment's indexes are begun anew.
        """
        if position:
            return ActiveSegment.reopened_at(segment, self.config, position, end)
        segment.final_size = 0
        segment.attach(index_files.begin_anew(segment))
        return ActiveSegment(segment, self.config, end, MOST_RELATIVE)

    def _start(self, segment: Segment) -> tuple[int, int]:
        """Return (position at which the check of a segment begins, offset that is expected at this
        position).
        """
        if self.recovery_point <= segment.base_offset:
            return 0, segment.base_offset
        try:
            found = segment.locate(self.recovery_point, segment.size)
        except CorruptRecordError as error:
            return error.position, segment.last_offset_before(error.position) + 1
        if found is None:
            return end_of_batches(segment)
        # If the batch begins above the recovery point, a gap lies before the batch. The returned offset is
        # then the recovery point, so that `_in_order` finds the gap.
        return int(found.position), min(int(found.base_offset), self.recovery_point)

    def _cut_excess(self, segment: Segment, valid: int) -> None:
        """Cut the bytes after a segment's last batch. The batch ends at the base offset of the next segment,
        so these bytes belong to no record (A5).
        """
        log.warning("%s: cut %d bytes behind the end", segment.path, segment.size - valid)
        self._truncate(segment, valid)

    def _truncate(self, segment: Segment, valid: int) -> None:
        with self.files.open(segment.path, write=True) as handle:
            self.files.truncate(handle, valid)
            self.files.sync(handle)
        self.pool.forget(segment.path)
        segment.size = valid
        segment.attach(None)

    def _cut(self, slot: int, valid: int, end: int, reason: str) -> Recovered:
        """Remove everything from byte `valid` of segment `slot` on (step 3)."""
        later = self.segments[slot + 1 :]
        pieces = [(self.segments[slot], valid), *((s, 0) for s in later)]
        kept = [path for s, at in pieces if (path := keep_batches(self.quarantine, s, at)) is not None]
        cut = sum(s.size - at for s, at in pieces)
        for segment in reversed(later):
            remove_segment(segment)
        if later:
            self.files.sync_dir(self.directory)
        self._truncate(self.segments[slot], valid)
        del self.segments[slot + 1 :]
        log.warning(
            "%s: cut %d bytes behind offset %d (%s)%s", self.name, cut, end, reason, ", kept" if kept else ""
        )
        return Recovered(self.name, self.recovery_point, end, cut, len(later), tuple(kept), reason)

    def _finish(self, done: Recovered, end: int) -> Recovered:
        """If the log ends below the recovery point, begin a new segment, except in a replica. Sync the log
        (steps 4 and 5).
        """
        if end < self.recovery_point and not self.replicated:
            self.segments.append(create_segment(self.pool, self.directory, self.recovery_point, self.config))
            end = self.recovery_point
        for following, segment in zip([*self.segments[1:], None], self.segments, strict=True):
            if following is not None and following.base_offset >= self.recovery_point:
                # this call rebuilds an index that was cut
                segment.largest_timestamp(segment.size, following.base_offset)
                index_files.sync(segment)
            if following is None or following.base_offset > self.recovery_point:
                if self.suspect:
                    self._write_back(segment)
                self.files.sync(self.pool.get(segment.path, write=True))
        self.files.sync_dir(self.directory)
        return replace(done, end_offset=end)

    def _write_back(self, segment: Segment) -> None:
        """Write all bytes again, because a failed sync may have marked their pages clean without writing
        them.
        """
        handle = self.pool.get(segment.path, write=True)
        for at in range(0, segment.size, CHUNK):
            self.files.pwrite(handle, self.files.pread(handle, min(CHUNK, segment.size - at), at), at)
