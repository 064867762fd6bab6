"""`named_objects` finds every object that is named by an archive's newest state, or by the last state of one
of its earlier histories (`Way`).

Nothing is on disk. States, commits and lists of segments are read from the archive. Threads: any; functions
without state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from segstore import names
from segstore.archiving.chain import Objects, read_state
from segstore.archiving.downloads import ObjectRange
from segstore.archiving.object_names import COMMIT, STATE, CommitName, commits_of, parse_commit
from segstore.archiving.restored_logs import check_joined, file_of, restored_logs
from segstore.archiving.segment_list import SegmentList, read_segments
from segstore.archiving.state import ArchivedPartition, ArchiveState, version_at
from segstore.errors import CorruptArchiveError, CorruptCheckpointError
from segstore.storage.finding import Finding
from segstore.storage.meta.topic_info import parse_settings


class LogBounds(NamedTuple):
    """The offsets that a log's batches may have: from `first` on, below `end`."""

    first: int
    end: int


class NamedRange(NamedTuple):
    """A range of an object. `log` has the bounds of its batches, or is None if the range has no batches."""

    range: ObjectRange
    log: LogBounds | None


class NamedObject(NamedTuple):
    """An object and the known ranges of its content. `size` is in bytes, or -1 if it is not known."""

    object: str
    ranges: tuple[NamedRange, ...]
    size: int = -1


class ArchiveContents(NamedTuple):
    """`objects` has the named objects by their names. The objects that were read to find other objects are
    included. `findings` are the errors that these reads have found.
    """

    objects: dict[str, NamedObject]
    findings: list[Finding]


def named_objects(objects: Objects) -> ArchiveContents:
    """Return all objects that a state names. Raises ArchiveError if there is no archive, or it can't be
    reached.
    """
    found = ArchiveContents({}, [])
    try:
        newest = read_state(objects)
    except CorruptArchiveError as error:
        found.findings.append(Finding(error.object, None, None, error.reason))
        return found
    _add(objects, newest, found)
    for way in newest.ways:
        try:
            _add(objects, read_state(objects, way.until - 1), found)
        except CorruptArchiveError as error:
            found.findings.append(Finding(error.object, None, None, error.reason))
    return found


def _add(objects: Objects, state: ArchiveState, found: ArchiveContents) -> None:
    ranges: dict[str, list[NamedRange]] = {str(name): [] for name in _chain(objects, state)}
    for archived in state.partitions.values():
        for piece in archived.pieces:
            bounds = LogBounds(piece.first, piece.end)
            where = ObjectRange(piece.object, piece.at, piece.length, piece.crc)
            ranges.setdefault(piece.object, []).append(NamedRange(where, bounds))
        if archived.segments is not None:
            found.objects[archived.segments] = NamedObject(archived.segments, ())
        try:
            listed = read_segments(objects, archived)
            _add_segments(listed, found)
            _check_joined(state, archived, listed)
        except CorruptArchiveError as error:
            found.findings.append(Finding(error.object, None, None, error.reason))
    for name, some in ranges.items():
        known = found.objects.get(name)
        before = () if known is None else known.ranges
        found.objects[name] = NamedObject(name, tuple(dict.fromkeys((*before, *some))))


def _chain(objects: Objects, state: ArchiveState) -> Iterator[CommitName]:
    """Yield the names of the objects that make up a state: its `.state` object, and the commits after it."""
    claim, last = state.name.claim, state.name.sequence
    listed = filter(None, map(parse_commit, objects.list(commits_of(claim))))
    states = [each.sequence for each in listed if each.suffix == STATE and each.sequence <= last]
    first = max(states, default=last)
    yield CommitName(claim, first, STATE)
    yield from (CommitName(claim, sequence, COMMIT) for sequence in range(first + 1, last + 1))


def _add_segments(listed: SegmentList, found: ArchiveContents) -> None:
    for segment in listed.segments:
        for suffix, (size, _) in segment.files.items():
            bounds = LogBounds(segment.base, segment.end) if suffix == names.LOG else None
            where = file_of(listed.key, segment, suffix)
            found.objects[where.object] = NamedObject(where.object, (NamedRange(where, bounds),), size)


def _check_joined(state: ArchiveState, archived: ArchivedPartition, listed: SegmentList) -> None:
    """Check that a log without compaction has all of its offsets. Raises CorruptArchiveError."""
    key, start, end = archived.key, archived.start, archived.end
    logs = restored_logs(key, listed.current, archived.pieces, start, end)
    topic = state.topics.get(key[:2])
    data = None if topic is None else version_at(topic.settings, None)
    if data:
        where = str(state.name)
        try:
            info = parse_settings(key.topic, data, where)[0].info
        except CorruptCheckpointError as error:
            raise CorruptArchiveError(where, f"the settings of topic {key.topic!r}: {error.reason}") from None
        if not info.gapped and not info.compacted:
            check_joined(logs, start, end, archived.segments or where)
