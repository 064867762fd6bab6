"""`read_state`: finds the newest state of an archive, or its state at a time, from claims, states and
commits.

An archiver begins with a claim that is higher than all earlier claims. The newest state belongs to the
highest claim that has a `.state` object. The newest `.state` of that claim is read, and then the later
commits are applied to it one by one. A commit that is not listed yet is found by its name, which has the next
sequence number. If the store has lost records that were archived, the archive's content before that loss is
in the commits of another claim (`Way`).

The archive is only read. Threads: any; functions without state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from segstore.archiving.commit_format import PREFIX, header_length, unpack_header
from segstore.archiving.object_names import (
    CLAIMS,
    COMMIT,
    STATE,
    ArchiverClaim,
    CommitName,
    commits_of,
    parse_claim_object,
    parse_commit,
)
from segstore.archiving.state import ArchiveState, state_of
from segstore.errors import ArchiveError, CorruptArchiveError

FIRST_LOOK = 1 << 16
"""Bytes of the first read of a header. Most headers are shorter, so they need one request."""


class Objects(Protocol):
    """The methods of `remote.RemoteFiles` that a reader of an archive uses."""

    uri: str

    def list(self, prefix: str) -> dict[str, int]: ...

    def read(self, name: str) -> bytes: ...

    def read_range(self, name: str, at: int, length: int) -> bytes: ...


def claims(objects: Objects) -> list[ArchiverClaim]:
    """Return the claims of all archivers to an archive, the highest first."""
    found = filter(None, map(parse_claim_object, objects.list(CLAIMS)))
    return sorted(found, reverse=True)


def read_header(objects: Objects, name: CommitName) -> tuple[dict[str, Any], int]:
    """Return the header of a commit or a state, and the position of its pieces. Raises CorruptArchiveError,
    FileNotFoundError.
    """
    where = str(name)
    data = objects.read_range(where, 0, FIRST_LOOK)
    length = PREFIX + header_length(data[:PREFIX], where)
    if length > len(data) == FIRST_LOOK:
        data += objects.read_range(where, FIRST_LOOK, length - FIRST_LOOK)
    return unpack_header(data, where), length


def read_state(objects: Objects, time: int | None = None) -> ArchiveState:
    """Return the newest state of an archive. If the store's log has diverged from the archive after `time`
    (ms), return the newest state that the archiver of that time has written. Raises CorruptArchiveError,
    UnsupportedFormatError, and ArchiveError if there is no archive or it can't be reached.
    """
    state = newest_state(objects)
    if state is None:
        raise ArchiveError(f"{objects.uri}: there is no archive: `segstore archive` makes one")
    return _way_at(objects, state, time)


def newest_state(objects: Objects) -> ArchiveState | None:
    """Return the newest state of an archive, or None if there is no archive. Raises the errors of
    `read_state`.
    """
    for claim in claims(objects):
        state = newest_of(objects, claim)
        if state is not None:
            return state
    return None


def newer_state(objects: Objects, state: ArchiveState) -> ArchiveState:
    """Return the newest state of an archive. If `state` belongs to the highest claim, and the commits after
    `state` exist, these commits are applied to `state`. If not, the newest state is read anew. Raises the
    errors of `read_state`.
    """
    highest = claims(objects)
    if not highest or highest[0] != state.name.claim:
        return read_state(objects)
    listed = filter(None, map(parse_commit, objects.list(commits_of(state.name.claim))))
    last = max((name.sequence for name in listed), default=0)
    try:
        state = _applied(objects, state, 0)
    except CorruptArchiveError:
        return read_state(objects)
    return state if state.name.sequence >= last else read_state(objects)


def newest_of(objects: Objects, claim: ArchiverClaim) -> ArchiveState | None:
    """Return the newest state that the archiver with the claim `claim` has written, or None if it has written
    no state.
    """
    listed = objects.list(commits_of(claim))
    found = [name for name in map(parse_commit, listed) if name is not None]
    states = sorted(name for name in found if name.suffix == STATE)
    if not states:
        if found:
            raise CorruptArchiveError(str(min(found)), "commits are there, and no state before them")
        return None
    last = max(name.sequence for name in found)
    return _followed(objects, states[-1], last)


def _followed(objects: Objects, name: CommitName, last: int) -> ArchiveState:
    """Return the state of the `.state` object `name` with all later commits applied. Raises
    CorruptArchiveError if a commit up to the sequence number `last` is missing.
    """
    header, pieces_at = read_header(objects, name)
    return _applied(objects, state_of(header, name, pieces_at), last)


def _applied(objects: Objects, state: ArchiveState, last: int) -> ArchiveState:
    for after in _names_after(state.name):
        try:
            header, pieces_at = read_header(objects, after)
        except FileNotFoundError:
            if after.sequence <= last:
                raise CorruptArchiveError(str(after), "it is missing, and a later one is there") from None
            return state
        state.apply(header, after, pieces_at)
    raise AssertionError("unreachable")


def _names_after(name: CommitName) -> Iterator[CommitName]:
    while True:
        name = CommitName(name.claim, name.sequence + 1, COMMIT)
        yield name


def _way_at(objects: Objects, state: ArchiveState, time: int | None) -> ArchiveState:
    """Return `state`. If the store has lost archived records since `time` (ms), return the newest state of
    the history that the archive had at that time (`Way`).
    """
    if time is not None:
        for way in state.ways:
            if time < way.until:
                earlier = newest_of(objects, way.claim)
                if earlier is None:
                    raise CorruptArchiveError(
                        commits_of(way.claim), f"what the archive had before {way.until} ms is missing"
                    )
                return _way_at(objects, earlier, time)
    return state
