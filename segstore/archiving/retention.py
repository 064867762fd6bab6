"""`ArchiveRetention`: chooses the segments and topics to delete from an archive.

The limits of age and size apply only to segments that have left the store's log. Segments that compaction has
replaced have a retention of their own. Nothing is on disk. Threads: the archiver's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from segstore.archiving.object_names import TopicIdPartition
from segstore.archiving.partition_archive import PartitionArchive
from segstore.archiving.segment_list import SegmentList
from segstore.archiving.settings import ArchiveSettings
from segstore.archiving.state import ArchiveState, Way

EVERY = 60_000
"""Ms between two checks."""


class ArchiveRetention:
    """Chooses, at intervals, the segments and topics that the archive's retention deletes."""

    def __init__(self, settings: ArchiveSettings) -> None:
        self._settings, self._due = settings, 0
        self._every = min(
            [EVERY, *(each for each in (settings.retention_ms, settings.replaced_retention_ms) if each >= 0)]
        )

    def is_due(self, time: int) -> bool:
        """Return whether a check is due. If True, the next check is due after EVERY ms, or sooner if a
        retention is shorter.
        """
        if time < self._due:
            return False
        self._due = time + self._every
        return True

    def forgotten(self, state: ArchiveState, time: int) -> list[tuple[str, str]]:
        """Return (name, id) of the deleted topics whose retention in the archive has expired."""
        if self._settings.retention_ms < 0:
            return []
        limit = time - self._settings.retention_ms
        return [
            key for key, each in state.topics.items() if each.deleted is not None and each.deleted < limit
        ]

    def kept_ways(self, ways: Iterable[Way], time: int) -> tuple[Way, ...]:
        """Return the earlier histories of the archive (`Way`) that are within the retention."""
        return tuple(each for each in ways if not 0 <= self._settings.retention_ms < time - each.until)

    def dropped(
        self,
        partitions: Mapping[TopicIdPartition, PartitionArchive],
        state: ArchiveState,
        time: int,
        forgotten: Collection[tuple[str, str]],
    ) -> dict[TopicIdPartition, frozenset[str]]:
        """Return {partition: upload ids of the segments to delete}. Topics in `forgotten` are skipped,
        because they are deleted as a whole.
        """
        found = {}
        for key, each in partitions.items():
            if key[:2] in forgotten:
                continue
            had = state.partitions.get(key)
            behind = sum(piece.length for piece in had.pieces) if had is not None else 0
            if gone := self.dropped_of(each.listed, behind, time):
                found[key] = gone
        return found

    def dropped_of(self, listed: SegmentList, behind: int, time: int) -> frozenset[str]:
        """Return the upload ids of a partition's segments to delete. `behind` is the size of the partition's
        pieces in bytes.
        """
        settings, gone = self._settings, set()
        left = behind + sum(each.size for each in listed.segments if each.retired != "replaced")
        for each in listed.segments:
            if each.until is None:
                continue
            if each.retired == "replaced":
                if 0 <= settings.replaced_retention_ms < time - each.until:
                    gone.add(each.upload)
                continue
            latest = each.max_timestamp if each.max_timestamp >= 0 else each.until
            too_old = 0 <= settings.retention_ms < time - latest
            if too_old or 0 <= settings.retention_bytes < left:
                gone.add(each.upload)
                left -= each.size
        return frozenset(gone)
