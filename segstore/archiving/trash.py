"""`Trash`: objects of an archive that nothing needs any more, until they are deleted.

An object is deleted once nothing has needed it for the grace time, so that who reads an older state still
finds it; and after a look at the claims, since another archiver may go on from an older state. What killed
archivers left is found by a list of all objects, at the start and once a day. In the archive: only deletes.
Threads: the archiver's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic

from segstore.archiving.chain import newest_of
from segstore.archiving.claim import WritableObjects, check_claim
from segstore.archiving.counts import Counts
from segstore.archiving.object_names import (
    CLAIMS,
    COMMIT,
    COMMITS,
    SEGMENT_SUFFIXES,
    TOPICS,
    Claim,
    CommitName,
    PartitionKey,
    claim_object,
    commits_of,
)
from segstore.archiving.pieces import Segment
from segstore.archiving.segment_list import SegmentList, parse_segment_list
from segstore.archiving.state import ArchiveState
from segstore.errors import CorruptArchiveError
from segstore.logger import Logger

log = Logger("segstore")
FULL_LIST = 24 * 3600.0
"""Seconds between two lists of all objects."""
MOST_AT_ONCE = 1000


class Trash:
    """`add` and `list_all` take objects in, `sweep` deletes those that are due. Times are ms."""

    def __init__(self, objects: WritableObjects, claim: Claim, grace_ms: int, counts: Counts) -> None:
        self._objects, self._claim, self._grace, self._counts = objects, claim, grace_ms, counts
        self._since: dict[str, int] = {}
        self._next_list = monotonic()

    def add(self, found: Iterable[str], time: int) -> None:
        """Take objects that nothing needs from a time on."""
        for name in found:
            self._since.setdefault(name, time)

    def keep(self, found: Iterable[str]) -> None:
        """Take objects out again."""
        for name in found:
            self._since.pop(name, None)

    @property
    def wants_list(self) -> bool:
        """Return whether all objects are to be listed."""
        return monotonic() >= self._next_list

    def put_off(self) -> None:
        """Take all objects to be listed, although they could not be."""
        self._next_list = monotonic() + FULL_LIST

    def list_all(self, needed: set[str], is_live: Callable[[str], bool], time: int) -> None:
        """List all objects, and take those in that are not `needed`, nor uploaded just now. Raises
        ArchiveError.
        """
        self._next_list = monotonic() + FULL_LIST
        for prefix in (CLAIMS, COMMITS, TOPICS):
            self.add(
                (name for name in self._objects.list(prefix) if name not in needed and not is_live(name)),
                time,
            )

    def sweep(self, time: int) -> int:
        """Delete what is due; return how many objects. Raises ArchiveError, ArchiveFencedError."""
        due = [name for name, since in self._since.items() if time - since >= self._grace][:MOST_AT_ONCE]
        if not due:
            return 0
        check_claim(self._objects, self._claim)
        self._objects.delete(due)
        for name in due:
            del self._since[name]
        self._counts.deleted += len(due)
        return len(due)


def segment_objects(key: PartitionKey, segment: Segment) -> list[str]:
    """Return the names of a segment's objects."""
    return [segment.object(key, suffix) for suffix in SEGMENT_SUFFIXES if suffix in segment.files]


def needed_by(state: ArchiveState, lists: Iterable[SegmentList]) -> set[str]:
    """Return all objects that a state names, with those of its lists."""
    found = {piece.object for each in state.partitions.values() for piece in each.pieces}
    found |= {each.segments for each in state.partitions.values() if each.segments is not None}
    for listed in lists:
        for segment in listed.segments:
            found.update(segment_objects(listed.key, segment))
    return found


def needed_by_ways(objects: WritableObjects, state: ArchiveState, time: int, retention_ms: int) -> set[str]:
    """Return all objects of the earlier ways of an archive, but those that ended before the retention. What
    is damaged of them is kept as it is.
    """
    found: set[str] = set()
    for way in state.ways:
        if not 0 <= retention_ms < time - way.until:
            found.update(objects.list(commits_of(way.claim)))
            try:
                earlier = newest_of(objects, way.claim)
            except (CorruptArchiveError, FileNotFoundError) as error:
                log.warning("an earlier way of the archive can't be read: %s", error)
                raise
            if earlier is not None:
                lists = [
                    parse_segment_list(objects.read(each.segments), each.segments)
                    for each in earlier.partitions.values()
                    if each.segments is not None
                ]
                found |= needed_by(earlier, lists)
    return found


def own_objects(claim: Claim, state: ArchiveState, last_state: CommitName) -> set[str]:
    """Return the claim, and the commits from its last state on."""
    names = {
        str(CommitName(claim, number, COMMIT))
        for number in range(last_state.sequence, state.name.sequence + 1)
    }
    return names | {claim_object(claim), str(last_state)}
