"""`Trash`: objects of an archive that are no longer needed, until they are deleted.

An object is deleted when it has not been needed for the grace time, so that a reader of an older state still
finds the object. Before each delete the archiver checks that its claim is still the highest, because another
archiver may have claimed the archive, and may need objects of an older state. A list of all objects, made at
the start and once a day, shows the objects that killed archivers left. Objects that an earlier history of the
archive (`Way`) needs stay. Until these objects are known, the archiver deletes only objects that it has
written itself, because no earlier history can name them. Threads: the archiver's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from time import monotonic
from typing import NamedTuple

from segstore.archiving.chain import newest_of
from segstore.archiving.claim import WritableObjects, check_claim
from segstore.archiving.counts import ArchiverCounts
from segstore.archiving.object_names import (
    CLAIMS,
    COMMIT,
    COMMITS,
    SEGMENT_SUFFIXES,
    TOPICS,
    ArchiverClaim,
    CommitName,
    TopicIdPartition,
    claim_object,
    commits_of,
)
from segstore.archiving.pieces import ArchivedSegment
from segstore.archiving.segment_list import SegmentList, read_segments
from segstore.archiving.state import ArchiveState, Way
from segstore.errors import CorruptArchiveError

FULL_LIST = 24 * 3600.0
"""Seconds between two lists of all objects."""
MOST_AT_ONCE = 1000


class Trash:
    """The objects to delete. `sweep` deletes the objects whose grace time is over. Times are ms."""

    def __init__(
        self, objects: WritableObjects, claim: ArchiverClaim, grace_ms: int, counts: ArchiverCounts
    ) -> None:
        self._objects, self._claim, self._grace, self._counts = objects, claim, grace_ms, counts
        self._since: dict[str, int] = {}
        self._of_ways: Collection[str] | None = None
        self._next_list = monotonic()

    def add(self, found: Iterable[str], time: int) -> None:
        """Add objects that the newest state has not needed since `time`."""
        for name in found:
            if self._of_ways is None or name not in self._of_ways:
                self._since.setdefault(name, time)

    def keep(self, of_ways: Collection[str]) -> None:
        """Until the next call, do not delete the objects `of_ways`, which earlier histories need."""
        self._of_ways = of_ways
        for name in self._since.keys() & set(of_ways):
            del self._since[name]

    @property
    def wants_list(self) -> bool:
        """Return whether a list of all objects is due: at the first call, and then once a day."""
        if monotonic() < self._next_list:
            return False
        self._next_list = monotonic() + FULL_LIST
        return True

    def sweep(self, time: int) -> int:
        """Delete objects whose grace time is over, at most MOST_AT_ONCE, and return the number of deleted
        objects. Raises ArchiveError, ArchiveFencedError.
        """
        due = [
            name for name, since in self._since.items() if time - since >= self._grace and self._may_go(name)
        ][:MOST_AT_ONCE]
        if not due:
            return 0
        check_claim(self._objects, self._claim)
        self._objects.delete(due)
        for name in due:
            del self._since[name]
        self._counts.deleted += len(due)
        return len(due)

    def _may_go(self, name: str) -> bool:
        return self._of_ways is not None or str(self._claim) in name


def segment_objects(key: TopicIdPartition, segment: ArchivedSegment) -> list[str]:
    """Return the names of a segment's objects."""
    return [segment.object(key, suffix) for suffix in SEGMENT_SUFFIXES if suffix in segment.files]


def needed_by(state: ArchiveState, lists: Iterable[SegmentList]) -> set[str]:
    """Return all objects that a state and its lists name."""
    found = {piece.object for each in state.partitions.values() for piece in each.pieces}
    found |= {each.segments for each in state.partitions.values() if each.segments is not None}
    for listed in lists:
        for segment in listed.segments:
            found.update(segment_objects(listed.key, segment))
    return found


class ListedObjects(NamedTuple):
    """The names of all objects (`found`), and of the objects that earlier histories need (`of_ways`)."""

    found: set[str]
    of_ways: set[str]


def list_all(objects: WritableObjects, ways: Iterable[Way]) -> ListedObjects:
    """Delete unfinished objects of killed writers, and then list all objects of an archive. Raises
    ArchiveError, and CorruptArchiveError if the objects of an earlier history can't be read.
    """
    objects.delete_unfinished()
    found = {name for prefix in (CLAIMS, COMMITS, TOPICS) for name in objects.list(prefix)}
    return ListedObjects(found, {name for way in ways for name in _needed_by_way(objects, way, found)})


def _needed_by_way(objects: WritableObjects, way: Way, found: set[str]) -> set[str]:
    prefix = commits_of(way.claim)
    needed = {name for name in found if name.startswith(prefix)}
    earlier = newest_of(objects, way.claim)
    if earlier is None:
        raise CorruptArchiveError(prefix, "what the archive had on an earlier way is missing")
    return needed | needed_by(earlier, [read_segments(objects, it) for it in earlier.partitions.values()])


def own_objects(claim: ArchiverClaim, state: ArchiveState, last_state: CommitName) -> set[str]:
    """Return the names of an archiver's own objects: its claim, its last `.state`, and the commits after that
    state.
    """
    names = {
        str(CommitName(claim, number, COMMIT))
        for number in range(last_state.sequence, state.name.sequence + 1)
    }
    return names | {claim_object(claim), str(last_state)}
