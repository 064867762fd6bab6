"""Brings a partition back after an unclean shutdown; a page, on purpose.

On disk: cuts the log, rewrites its indexes, keeps what was cut in `.segstore/quarantine`.
Threads: one, before the partition is used.

1. Batches below the recovery point were synced: they are not looked at, and never cut. What is
   damaged there is bit rot, which readers report.
2. From the recovery point on every batch is checked, its CRC too, and indexed anew.
3. At the first batch that is none (torn, a hole of zeros, a CRC that fails), or where a segment that should
   follow doesn't, the log ends. What lies behind is copied to the quarantine if it holds whole batches;
   then later segments go, the last one first; then the log is cut and synced. A crash in between
   leaves the same first bad batch to the next recovery.
4. Where even what is below the recovery point is gone, the log goes on in a new segment at the
   recovery point: an offset that was durable once is not given again.
5. The new end is synced, and the caller begins a new leader epoch there.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace

from segstore import names
from segstore.config import TopicConfig
from segstore.errors import CorruptRecordError
from segstore.files import Files
from segstore.storage.active import ActiveSegment
from segstore.storage.segment import Segment
from segstore.storage.walk import BAD, next_whole, walk
from segstore.storage.writer import create_segment, remove_segment

log = logging.getLogger("segstore")


def behind_last(segment: Segment) -> tuple[int, int]:
    """The position behind a segment's last batch, and the offset there, by index and headers."""
    offsets = segment.indexes[0]
    position = offsets.entry(-1)[1] if offsets.entries else 0
    end = segment.base_offset
    for step in walk(segment.pool.files, segment.handle, position, segment.size, check_crcs=False):
        end = int(step.batches["last_offset"][-1]) + 1 if len(step.batches) else end
        position = step.stop.position
    return position, end


@dataclass(frozen=True)
class Recovered:
    """What recovery did to a partition. `cut_bytes` is 0 where the log was whole."""

    partition: str
    recovery_point: int
    end_offset: int
    cut_bytes: int = 0
    removed_segments: int = 0
    quarantined: tuple[str, ...] = ()
    reason: str = ""


class PartitionRecovery:
    """Recovers `segments` (sealed ones, sizes as found) from `recovery_point` on."""

    def __init__(
        self,
        segments: list[Segment],
        config: TopicConfig,
        recovery_point: int,
        quarantine: str,
        gaps_end: int,
    ) -> None:
        """`gaps_end`: below it compaction may have left gaps between segments (-1: anywhere)."""
        self.segments, self.config, self.recovery_point = segments, config, recovery_point
        self.quarantine, self.gaps_end = quarantine, gaps_end
        self.pool = segments[0].pool
        self.files: Files = self.pool.files
        self.directory = segments[0].directory
        self.name = os.path.basename(self.directory)

    def run(self) -> Recovered:
        """Steps 1 to 5. OSError."""
        bases = [s.base_offset for s in self.segments]
        slot = max(sum(base <= self.recovery_point for base in bases) - 1, 0)
        end = self.segments[slot].base_offset
        done = Recovered(self.name, self.recovery_point, 0)
        while slot < len(self.segments):
            segment = self.segments[slot]
            if slot and self._is_hole(end, segment.base_offset):
                done = self._cut(
                    slot - 1, self.segments[slot - 1].size, end, "the next segment does not follow"
                )
                break
            valid, end, reason = self._recover_segment(segment)
            if valid < segment.size and end >= self.recovery_point:
                done = self._cut(slot, valid, end, reason)
                break
            slot += 1
        return self._finish(done, end)

    def _is_hole(self, end: int, base: int) -> bool:
        return end < base and end >= self.recovery_point and 0 <= self.gaps_end <= end

    def _recover_segment(self, segment: Segment) -> tuple[int, int, str]:
        """Check and index a segment from the recovery point on: valid bytes, next offset, why it ends."""
        position, end = self._start(segment)
        size, reason = segment.size, ""
        active = ActiveSegment.reopened_at(segment, self.config, position, end)
        while position < size:
            for step in walk(self.files, segment.handle, position, size, check_crcs=True):
                if len(step.batches):
                    end = int(step.batches["last_offset"][-1]) + 1
                    active.appended(step.batches, end)
                position, reason = step.stop.position, BAD.get(step.stop.status, "")
            if position >= size or end >= self.recovery_point:
                break
            # Damage below the recovery point: bit rot. Go on behind it.
            found = next_whole(self.files, segment.handle, position + 1, size, end)
            if found is None:
                break
            position = found
        active.trim()
        segment.size = size
        segment.attach(None)
        return position, end, reason

    def _start(self, segment: Segment) -> tuple[int, int]:
        """Where checking begins, and the offset there."""
        if self.recovery_point <= segment.base_offset:
            return 0, segment.base_offset
        try:
            found = segment.locate(self.recovery_point, segment.size)
        except CorruptRecordError as error:
            return error.position, segment.last_offset_before(error.position) + 1
        if found is None:
            return behind_last(segment)
        return int(found.position), int(found.base_offset)

    def _cut(self, slot: int, valid: int, end: int, reason: str) -> Recovered:
        """Step 3: from byte `valid` of segment `slot` on nothing stays."""
        later = self.segments[slot + 1 :]
        pieces = [(self.segments[slot], valid), *((s, 0) for s in later)]
        kept = [path for s, at in pieces if (path := self._keep(s, at)) is not None]
        cut = sum(s.size - at for s, at in pieces)
        for segment in reversed(later):
            remove_segment(segment)
        if later:
            self.files.sync_dir(self.directory)
        segment = self.segments[slot]
        with self.files.open(segment.path, write=True) as handle:
            self.files.truncate(handle, valid)
            self.files.sync(handle)
        self.pool.forget(segment.path)
        segment.size = valid
        segment.attach(None)
        del self.segments[slot + 1 :]
        log.warning(
            "%s: cut %d bytes behind offset %d (%s)%s", self.name, cut, end, reason, ", kept" if kept else ""
        )
        return Recovered(self.name, self.recovery_point, end, cut, len(later), tuple(kept), reason)

    def _keep(self, segment: Segment, position: int) -> str | None:
        """Copy what is about to be cut, if there are whole batches in it; the copy's path."""
        if next_whole(self.files, segment.handle, position, segment.size, 0) is None:
            return None
        name = f"{self.name}-{segment.base_offset:020d}-at-{position}{names.LOG}"
        path = os.path.join(self.quarantine, name)
        if not self.files.exists(self.quarantine):
            self.files.mkdir(self.quarantine)
            self.files.sync_dir(os.path.dirname(self.quarantine))
        with self.files.open(path, write=True, create=True) as copy:
            self.files.truncate(copy, 0)
            self.files.copy_range(segment.handle, position, copy, 0, segment.size - position)
            self.files.sync(copy)
        self.files.sync_dir(self.quarantine)
        return path

    def _finish(self, done: Recovered, end: int) -> Recovered:
        """Steps 4 and 5."""
        if end < self.recovery_point:
            self.segments.append(create_segment(self.pool, self.directory, self.recovery_point, self.config))
            end = self.recovery_point
        for following, segment in zip([*self.segments[1:], None], self.segments, strict=True):
            if following is None or following.base_offset > self.recovery_point:
                self.files.sync(self.pool.get(segment.path, write=True))
        self.files.sync_dir(self.directory)
        return replace(done, end_offset=end)
