"""`ArchiveState`: the content of an archive after a commit: topics, partitions, and small files of the store.

A commit has the changes since the commit before it, and a state has the whole content. Both have headers of
the same format, and `apply` accepts both. Threads: one at a time; only `apply` changes a state.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from segstore.archiving.object_names import ArchiverClaim, CommitName, TopicIdPartition, parse_claim
from segstore.archiving.pieces import ArchivedPiece, piece_of
from segstore.errors import CorruptArchiveError, UnsupportedFormatError

FORMAT = 1

Versions = tuple[tuple[int, bytes], ...]
"""The versions of a small file, ordered by time: (time in ms from which the file had this content,
content).
"""


class ArchivedTopic(NamedTuple):
    """A topic. `settings` are the versions of its settings file, as `storage.meta.topic_info` formats it, or
    b"" if a broker's topic has none. `created` is the last time (ms) at which the topic did not
    exist yet, or 0 if the archive has had the topic from its beginning. `deleted` is the time at which the
    topic was deleted, or None.
    """

    name: str
    topic_id: str
    partitions: tuple[int, ...]
    settings: Versions
    created: int
    deleted: int | None = None

    def there_at(self, time: int | None) -> bool:
        """Return whether the topic existed at a time (ms), or in the newest state if `time` is None."""
        if time is None:
            return self.deleted is None
        return self.created <= time and (self.deleted is None or time < self.deleted)


@dataclass(frozen=True)
class ArchivedPartition:
    """A partition at the moment of the newest commit with an entry for it.

    `segments` is the name of the object with its `SegmentList`, or None if no segment is sealed. `pieces` are
    the log after the sealed segments, in order and without gaps. `start`, `end` and `stable` are log start
    offset, high watermark and last stable offset (-1: not known). `epochs` are the entries of
    leader-epoch-checkpoint, `cleaned` is the entry of cleaner-offset-checkpoint, and `moment` is the time
    (ms).
    """

    key: TopicIdPartition
    segments: str | None
    pieces: tuple[ArchivedPiece, ...]
    start: int
    end: int
    stable: int
    epochs: tuple[tuple[int, int], ...]
    cleaned: int | None
    moment: int

    def to_json(self, pieces: Iterable[ArchivedPiece], drop_before: int) -> dict[str, Any]:
        """Return the entry of the partition in a commit or a state.

        In a commit, `pieces` are added to the pieces of earlier commits, and pieces of segments with a base
        offset below `drop_before` are dropped. In a state, `pieces` are all pieces. If a piece lies in the
        object that is being written, its `at` counts from the end of the object's header.
        """
        return {
            "topic": self.key.topic,
            "topic_id": self.key.topic_id,
            "partition": self.key.partition,
            "segments": self.segments,
            "start": self.start,
            "end": self.end,
            "stable": self.stable,
            "epochs": [list(each) for each in self.epochs],
            "cleaned": self.cleaned,
            "moment": self.moment,
            "drop_before": drop_before,
            "pieces": [each.to_json() for each in pieces],
        }


class Way(NamedTuple):
    """An earlier history of the archive. This history ended at the time `until` (ms), because the store lost
    archived records. The commits of `claim` have the archive's content before that time.
    """

    until: int
    claim: ArchiverClaim


@dataclass
class ArchiveState:
    """The content of an archive. `name` is the newest commit that was applied, and `time` is the moment (ms)
    of that commit.
    """

    name: CommitName
    time: int
    ways: tuple[Way, ...] = ()
    """The earlier histories of the archive, ordered by time."""
    topics: dict[tuple[str, str], ArchivedTopic] = field(default_factory=dict)
    """The keys are (name, topic id)."""
    partitions: dict[TopicIdPartition, ArchivedPartition] = field(default_factory=dict)
    files: dict[str, Versions] = field(default_factory=dict)
    """The versions of each small file below `.segstore`. The keys are the names of the files."""

    def apply(self, header: Mapping[str, Any], name: CommitName, pieces_at: int) -> None:
        """Apply the changes of a commit, whose pieces begin at byte `pieces_at` of its object. Raises
        CorruptArchiveError, UnsupportedFormatError; the state must not be used after an error.
        """
        where = str(name)
        if header.get("format") != FORMAT:
            raise UnsupportedFormatError(where, header.get("format", 0), "newer", FORMAT)
        try:
            if CommitName(_claim(header["claim"]), int(header["sequence"]), name.suffix) != name:
                raise ValueError(f"it is that of {header['claim']}, number {header['sequence']}")
            self._take(header, where, pieces_at)
            self.name, self.time = name, int(header["time"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptArchiveError(where, f"its header says no commit: {error!r}") from None

    def _take(self, header: Mapping[str, Any], where: str, pieces_at: int) -> None:
        self.ways += tuple(Way(int(until), _claim(text)) for until, text in header["ways"])
        for each in header["topics"]:
            topic = _topic(each)
            self.topics[topic.name, topic.topic_id] = topic
        for name, topic_id in header.get("forgotten", ()):
            self._forget(name, topic_id)
        for each in header["partitions"]:
            key = TopicIdPartition(str(each["topic"]), str(each["topic_id"]), int(each["partition"]))
            self.partitions[key] = _partition(key, each, self.partitions.get(key), where, pieces_at)
        for name, versions in header["files"].items():
            self.files[name] = _versions(versions)

    def _forget(self, name: str, topic_id: str) -> None:
        del self.topics[name, topic_id]
        for key in [key for key in self.partitions if key[:2] == (name, topic_id)]:
            del self.partitions[key]

    def topic(self, name: str, time: int | None = None) -> ArchivedTopic | None:
        """Return the topic with a name at a time (ms), or in the newest state if `time` is None."""
        found = [it for it in self.topics.values() if it.name == name and it.there_at(time)]
        return min(found, key=lambda it: (it.created, it.topic_id)) if found else None

    def topic_names(self, time: int | None = None) -> list[str]:
        """Return the names of all topics at a time (ms), or in the newest state if `time` is None."""
        return sorted({it.name for it in self.topics.values() if it.there_at(time)})


def state_of(header: Mapping[str, Any], name: CommitName, pieces_at: int) -> ArchiveState:
    """Return the state in the header of a `.state` object. Raises the errors of `ArchiveState.apply`."""
    made = ArchiveState(name, 0)
    made.apply(header, name, pieces_at)
    return made


def header_of(
    name: CommitName,
    time: int,
    topics: Iterable[ArchivedTopic],
    partitions: Iterable[Mapping[str, Any]],
    files: Mapping[str, Versions],
    forgotten: Iterable[tuple[str, str]] = (),
    ways: Iterable[Way] = (),
) -> dict[str, Any]:
    """Return the header of a commit or a state. `partitions` are results of `ArchivedPartition.to_json`.
    `forgotten` are (name, id) of topics that are deleted from the archive. Only a state has `ways`.
    """
    return {
        "format": FORMAT,
        "claim": str(name.claim),
        "sequence": name.sequence,
        "time": time,
        "ways": [[each.until, str(each.claim)] for each in ways],
        "topics": [_topic_json(each) for each in topics],
        "partitions": list(partitions),
        "files": {file: _versions_json(each) for file, each in files.items()},
        "forgotten": [list(each) for each in forgotten],
    }


# --- entries ---------------------------------------------------------------------------


def _claim(text: str) -> ArchiverClaim:
    found = parse_claim(text)
    if found is None:
        raise ValueError(f"{text!r} is no claim")
    return found


def _versions(held: Iterable[Any]) -> Versions:
    return tuple((int(since), base64.b64decode(data, validate=True)) for since, data in held)


def _versions_json(versions: Versions) -> list[list[Any]]:
    return [[since, base64.b64encode(data).decode()] for since, data in versions]


def _topic(held: Mapping[str, Any]) -> ArchivedTopic:
    deleted = held["deleted"]
    return ArchivedTopic(
        str(held["name"]),
        str(held["topic_id"]),
        tuple(map(int, held["partitions"])),
        _versions(held["settings"]),
        int(held["created"]),
        None if deleted is None else int(deleted),
    )


def _topic_json(topic: ArchivedTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "partitions": list(topic.partitions),
        "settings": _versions_json(topic.settings),
        "created": topic.created,
        "deleted": topic.deleted,
    }


def _partition(
    key: TopicIdPartition,
    held: Mapping[str, Any],
    before: ArchivedPartition | None,
    where: str,
    pieces_at: int,
) -> ArchivedPartition:
    kept = () if before is None else before.pieces
    added = tuple(_placed(piece_of(each), where, pieces_at) for each in held["pieces"])
    pieces = tuple(each for each in kept if each.base >= int(held["drop_before"])) + added
    _check_joined(key, pieces, where)
    cleaned, segments = held["cleaned"], held["segments"]
    return ArchivedPartition(
        key,
        None if segments is None else str(segments),
        pieces,
        int(held["start"]),
        int(held["end"]),
        int(held["stable"]),
        tuple((int(epoch), int(start)) for epoch, start in held["epochs"]),
        None if cleaned is None else int(cleaned),
        int(held["moment"]),
    )


def _placed(piece: ArchivedPiece, where: str, pieces_at: int) -> ArchivedPiece:
    return piece._replace(at=piece.at + pieces_at) if piece.object == where else piece


def _check_joined(key: TopicIdPartition, pieces: tuple[ArchivedPiece, ...], where: str) -> None:
    """Check that each piece begins where the piece before it ends."""
    for before, after in pairwise(pieces):
        joined = before.position + before.length if before.base == after.base else 0
        if after.base < before.base or after.position != joined or after.first < before.end:
            raise CorruptArchiveError(
                where, f"{key}: a piece at {after.base}+{after.position} does not join the one before it"
            )


def with_version(versions: Versions, time: int, data: bytes) -> Versions:
    """Return `versions` with the new version (`time` in ms, `data`) at the end, or `versions` itself if the
    content has not changed.
    """
    return versions if versions and versions[-1][1] == data else (*versions, (time, data))


def version_at(versions: Versions, time: int | None) -> bytes | None:
    """Return the content of a file at a time (ms), or its first known content if the file had no known
    content at that time. A `time` of None means the newest content. Return None if no content is known.
    """
    if not versions:
        return None
    then = [data for since, data in versions if time is None or since <= time]
    return then[-1] if then else versions[0][1]
