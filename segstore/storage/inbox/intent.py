"""The intent of an adoption, `.segstore/inbox/<stem>.intent`: it says where the logs ended before.

It is one framed line: {"id", "places": [[topic, topic id, partition, segment, position, offset], ...]}: the
base offset and the bytes of the last segment, and the log end offset. While there is an intent whose id was
not recorded, no reader has seen records behind the offsets that it names. Threads: the store's writer; `undo`
before a partition is used.
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
    """Where a partition's log ended: `position` bytes into the segment with base offset `segment`."""

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
    """Write an intent, durable when this returns. Raises OSError; the intent may exist then, or not."""
    folder.files.write_atomic(folder.intent(intent.stem), frame({"id": intent.id, "places": intent.places}))


def remove_intent(folder: Folder, stem: str) -> None:
    """Remove an intent, durably. Raises OSError."""
    folder.unlink(folder.intent(stem))
    folder.files.sync_dir(folder.path)


def read_intent(folder: Folder, stem: str) -> Intent:
    """Return the intent. Raises CorruptCheckpointError, OSError."""
    path = folder.intent(stem)
    try:
        data = folder.files.read_file(path, 1 << 28)
    except OSError as error:
        if error.errno in NOT_A_FILE:
            raise CorruptCheckpointError(path, 1, f"no intent: {error.strerror}") from error
        raise
    try:
        held = unframe(data)
        places = tuple(LogOffsetMetadata(*row) for row in held["places"])
        kinds = [type(held["id"]), *(type(value) for place in places for value in place)]
        if kinds != [str, *_PLACE * len(places)]:
            raise ValueError("places are no places, or the id is none")
        if not all(0 <= number <= names.MAX_OFFSET for place in places for number in place[2:]):
            raise ValueError("a number is impossible")
        return Intent(stem, held["id"], places)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptCheckpointError(path, 1, f"no intent: {error}") from error


def undo(
    files: Files, root: str, topics: Mapping[str, TopicInfo], places: Sequence[LogOffsetMetadata]
) -> None:
    """Cut what was appended, durably; may be repeated. A topic that was deleted meanwhile is skipped. Raises
    OSError.
    """
    for place in places:
        info = topics.get(place.topic)
        if info is None or info.topic_id != place.topic_id or place.partition not in info.partition_ids:
            continue
        directory = os.path.join(root, names.partition_dir(place.topic, place.partition))
        if files.exists(directory):
            _cut(files, directory, place)


def _cut(files: Files, directory: str, place: LogOffsetMetadata) -> None:
    """Remove names, and no byte behind them: they may be a staged file's too, which is adopted again."""
    for base, suffixes in sorted(scan_directory(files, directory).items(), reverse=True):
        gone = suffixes if base > place.segment else {s for s in suffixes if s.endswith(names.TEMPORARY)}
        for suffix in sorted(gone):
            files.unlink(os.path.join(directory, names.segment_file(base, suffix)))
    path = os.path.join(directory, names.segment_file(place.segment, names.LOG))
    size = files.size(path) if files.exists(path) else -1
    if not place.position and size:
        files.write_atomic(path, b"")
    elif size >= 0:
        if size > place.position:
            files.take_own(path)
        # A log that is short enough may have been cut by the process that failed, whose sync failed too.
        with files.open(path, write=True) as handle:
            if size > place.position:
                files.truncate(handle, place.position)
            files.sync(handle)
    files.sync_dir(directory)
