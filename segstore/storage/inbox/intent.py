"""The intent of an adoption (an append of staged files), `.segstore/inbox/<stem>.intent`: the ends of the
logs before the adoption.

The file is one line with a CRC: {"id", "places": [[topic, topic id, partition, segment, position, offset],
...]}. For each partition, `segment` and `position` are the base offset and the size of the last segment, and
`offset` is the log end offset. While there is an intent, and its id is not recorded as adopted, readers see
no records from these offsets on. Threads: the store's writer; `undo` is called before partitions are opened.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from segstore import names
from segstore.errors import CorruptCheckpointError
from segstore.files import Files
from segstore.storage.inbox.layout import Folder
from segstore.storage.meta.framed import frame, unframe
from segstore.storage.meta.small_files import NOT_A_FILE
from segstore.storage.meta.topics import TopicInfo
from segstore.storage.segment.segment_files import scan_directory

_PLACE = (str, str, int, int, int, int)


class LogOffsetMetadata(NamedTuple):
    """The end of a partition's log before an adoption: the log end offset is `offset`, and the last segment
    has the base offset `segment` and `position` bytes.
    """

    topic: str
    topic_id: str
    partition: int
    segment: int
    position: int
    offset: int


class Intent(NamedTuple):
    stem: str
    id: str
    places: tuple[LogOffsetMetadata, ...]


def write_intent(folder: Folder, intent: Intent) -> None:
    """Write the intent file of an adoption, durably. After an OSError the file may or may not exist."""
    folder.files.write_atomic(folder.intent(intent.stem), frame({"id": intent.id, "places": intent.places}))


def remove_intent(folder: Folder, stem: str) -> None:
    """Remove the intent file of an adoption, durably. Raises OSError."""
    folder.unlink(folder.intent(stem))
    folder.files.sync_dir(folder.path)


def read_intent(folder: Folder, stem: str) -> Intent:
    """Read the intent file of an adoption. Raises CorruptCheckpointError, OSError."""
    path = folder.intent(stem)
    try:
        data = folder.files.read_file(path, 1 << 28)
    except OSError as error:
        if error.errno in NOT_A_FILE:
            raise CorruptCheckpointError(path, 1, f"no intent: {error.strerror}") from error
        raise
    try:
        fields = unframe(data)
        places = tuple(LogOffsetMetadata(*row) for row in fields["places"])
        kinds = [type(fields["id"]), *(type(value) for place in places for value in place)]
        if kinds != [str, *_PLACE * len(places)]:
            raise ValueError("places are no places, or the id is none")
        if not all(0 <= number <= names.MAX_OFFSET for place in places for number in place[2:]):
            raise ValueError("a number is impossible")
        return Intent(stem, fields["id"], places)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptCheckpointError(path, 1, f"no intent: {error}") from error


def undo(
    files: Files, root: str, topics: Mapping[str, TopicInfo], places: Sequence[LogOffsetMetadata]
) -> None:
    """Truncate the logs, durably, to `places`, their ends before an adoption. Deleted topics are skipped. May
    be repeated. Raises OSError.
    """
    for place in places:
        info = topics.get(place.topic)
        if info is None or info.topic_id != place.topic_id or place.partition not in info.partition_ids:
            continue
        directory = os.path.join(root, names.partition_dir(place.topic, place.partition))
        if files.exists(directory):
            _cut(files, directory, place)


def _cut(files: Files, directory: str, place: LogOffsetMetadata) -> None:
    """Remove the segments after the log end `place`, and the bytes after `place.position` in its segment."""
    # Segments are unlinked, not truncated: they may be hard links to staged files, which the manifest's next
    # adoption needs.
    for base, suffixes in sorted(scan_directory(files, directory).items(), reverse=True):
        removed = suffixes if base > place.segment else {s for s in suffixes if s.endswith(names.TEMPORARY)}
        for suffix in sorted(removed):
            files.unlink(os.path.join(directory, names.segment_file(base, suffix)))
    path = os.path.join(directory, names.segment_file(place.segment, names.LOG))
    size = files.size(path) if files.exists(path) else -1
    if not place.position and size:
        files.write_atomic(path, b"")
    elif size >= 0:
        if size > place.position:
            files.take_own(path)
        # The log is synced even if it is not truncated here, because the process that failed in the adoption
        # may have truncated the log without a sync.
        with files.open(path, write=True) as handle:
            if size > place.position:
                files.truncate(handle, place.position)
            files.sync(handle)
    files.sync_dir(directory)
