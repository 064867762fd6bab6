"""Notes, `.segstore/inbox/<stem>.joined`, of segments that an adoption (an append of staged files) has joined
from small staged files and not synced.

A note is one line with a CRC: {"version", "id", "durable", "segments": [[topic, topic id, partition, base
offset, leader epoch, [rows of StagedFile]], ...]}. A note is written before the id of the note's adoption is
recorded. When the segments are durable, the note is rewritten with "durable" true; then the staged files and
the note are removed.

While the segments are not durable, the staged files are the durable copy of the records: their stagers have
synced them. After a power cut the staged files are joined again into segments with the same bytes. Threads:
those of the store's writer; any thread of any process may call `kept`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from segstore import names
from segstore.errors import CorruptCheckpointError, InvalidTopicError
from segstore.integers import INT32_MAX
from segstore.storage.inbox.gatherer import Gatherer
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.staged_file import StagedFile
from segstore.storage.inbox.verify import check_bytes
from segstore.storage.meta.framed import frame, unframe
from segstore.storage.meta.small_files import NOT_A_FILE
from segstore.storage.meta.topic_info import TopicInfo

VERSION = 1
_MOST_BYTES = 1 << 28


class JoinedSegment(NamedTuple):
    """A segment of one partition that was joined from `files`, in their order. Its batches have offsets from
    `base` on and the leader epoch `epoch`.
    """

    topic: str
    topic_id: str
    partition: int
    base: int
    epoch: int
    files: tuple[StagedFile, ...]

    @property
    def end(self) -> int:
        """Return the offset after the last record."""
        return self.base + sum(file.records for file in self.files)

    @classmethod
    def parse(cls, row: Any) -> JoinedSegment:
        """Return the segment that a row of a `JoinNote` describes. Raises ValueError, InvalidTopicError."""
        topic, topic_id, partition, base, epoch, files = row
        names.check_topic(topic)
        if type(topic_id) is not str or [type(n) for n in (partition, base, epoch)] != [int] * 3:
            raise ValueError(f"{row!r:.200} is no joined segment")
        made = cls(topic, topic_id, partition, base, epoch, tuple(map(StagedFile.parse, files)))
        if not (0 <= partition <= names.MAX_PARTITION and 0 <= epoch <= INT32_MAX and made.files):
            raise ValueError(f"{row!r:.200} is no joined segment")
        if not 0 <= base <= made.end <= names.MAX_OFFSET:
            raise ValueError(f"base offset {base} is impossible")
        return made


class JoinNote(NamedTuple):
    """A note of joined segments. If `durable`, the segments are synced, and the staged files are no longer
    needed.
    """

    stem: str
    id: str
    segments: tuple[JoinedSegment, ...]
    durable: bool = False

    @property
    def files(self) -> list[StagedFile]:
        """Return the staged files of all segments."""
        return [file for segment in self.segments for file in segment.files]

    @property
    def partitions(self) -> set[tuple[str, int]]:
        return {(segment.topic, segment.partition) for segment in self.segments}


def write_joined(folder: Folder, joined: JoinNote) -> None:
    """Write a note of joined segments, durably. After an OSError the note may or may not exist."""
    fields = {
        "version": VERSION,
        "id": joined.id,
        "durable": joined.durable,
        "segments": joined.segments,
    }
    folder.files.write_atomic(folder.joined(joined.stem), frame(fields))


def read_joined(folder: Folder, stem: str) -> JoinNote:
    """Read a note of joined segments. Raises CorruptCheckpointError, FileNotFoundError, OSError."""
    path = folder.joined(stem)
    try:
        fields = unframe(folder.files.read_file(path, _MOST_BYTES))
        if fields["version"] != VERSION or [type(fields[k]) for k in ("id", "durable")] != [str, bool]:
            raise ValueError(f"version {fields['version']!r} is not known here, or the id is none")
        segments = tuple(map(JoinedSegment.parse, fields["segments"]))
        return JoinNote(stem, fields["id"], segments, fields["durable"])
    except OSError as error:
        if error.errno in NOT_A_FILE:
            raise CorruptCheckpointError(path, 1, f"no note: {error.strerror}") from error
        raise
    except (ValueError, KeyError, TypeError, InvalidTopicError) as error:
        raise CorruptCheckpointError(path, 1, f"no note of joined segments: {error}") from error


def forget_joined(folder: Folder, stem: str) -> None:
    """Remove the note of the segments that an undone adoption has joined, durably. Raises OSError."""
    if folder.files.exists(folder.joined(stem)):
        folder.unlink(folder.joined(stem))
        folder.files.sync_dir(folder.path)


def remove_joined(folder: Folder, joined: JoinNote) -> None:
    """Remove the note of joined segments that are durable, and their staged files. Raises OSError. May be
    repeated.
    """
    if not joined.durable:
        write_joined(folder, joined._replace(durable=True))
    folder.remove_staged(joined.files)
    folder.unlink(folder.joined(joined.stem))


def kept(folder: Folder) -> set[tuple[str, str]]:
    """Return (stager, name) of the staged files that the notes of joined segments list. A damaged note is
    skipped, because no segment can be joined from its files. Raises OSError.
    """
    files: set[tuple[str, str]] = set()
    for stem in folder.of_kind(names.JOINED):
        try:
            files |= {(file.stager, file.name) for file in read_joined(folder, stem).files}
        except (CorruptCheckpointError, FileNotFoundError):
            continue
    return files


# --- after a crash -----------------------------------------------------------------------------


def join_again(
    folder: Folder,
    topics: Mapping[str, TopicInfo],
    joined: JoinNote,
    durable_below: Callable[[TopicInfo, int], int],
) -> None:
    """Join the segments of a note again from their staged files, durably, before the partitions are opened.
    May be repeated.

    A segment that ends at or below the offset `durable_below(topic, partition)` stays unchanged, because it
    is durable, and may have been compacted or deleted after its adoption. Raises OSError, and
    StagedFilesError if a staged file is missing or damaged.
    """
    for segment in () if joined.durable else joined.segments:
        info = topics.get(segment.topic)
        if info is None or info.topic_id != segment.topic_id or segment.partition not in info.partition_ids:
            continue
        # A segment is joined again even if its file has all bytes, because a sync of the file may have
        # failed, and the disk may lack some of the bytes.
        if durable_below(info, segment.partition) < segment.end:
            _join(folder, segment)


def _join(folder: Folder, segment: JoinedSegment) -> None:
    files = folder.files
    directory = os.path.join(folder.root, names.partition_dir(segment.topic, segment.partition))
    files.check_directory(directory)
    for file in segment.files:
        check_bytes(files, folder.staged(file), file)
    with Gatherer(folder) as gatherer:
        made = gatherer.gather(segment.files, segment.base, segment.epoch, sync=True)
        for suffix in (names.INDEX, names.TIME_INDEX):  # the open of the partition makes new indexes
            folder.unlink(os.path.join(directory, names.segment_file(segment.base, suffix)))
        files.rename(
            folder.staged(made), os.path.join(directory, names.segment_file(segment.base, names.LOG))
        )
        files.sync_dir(directory)


def all_joined(folder: Folder, damaged: Callable[[str, CorruptCheckpointError], None]) -> Sequence[JoinNote]:
    """Return all undamaged notes of joined segments. Call `damaged` with the stem and error of each damaged
    note. Raises OSError.
    """
    notes = []
    for stem in folder.of_kind(names.JOINED):
        try:
            notes.append(read_joined(folder, stem))
        except CorruptCheckpointError as error:
            damaged(stem, error)
    return notes
