"""`restore`: makes a store from the newest state of an archive, or from an earlier state.

The new store is made in `<path>.restoring`, which is renamed to `path` at the end (`storage.new_store`).
Before the rename the store is opened once. This begins a leader epoch in each partition, and completes
transactions whose marker is in some partitions and missing in others. The archive is only read. Threads and
processes: any.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol

from segstore import names
from segstore.archiving.chain import Objects, read_state
from segstore.archiving.contents import named_objects
from segstore.archiving.downloads import Progress, ReadableObjects, download
from segstore.archiving.object_names import TopicIdPartition
from segstore.archiving.remote import RemoteFiles
from segstore.archiving.restored_partition import RestoredPartition
from segstore.archiving.segment_list import read_segments
from segstore.archiving.state import ArchivedPartition, ArchivedTopic, ArchiveState, version_at
from segstore.archiving.times import Cut, parse_at
from segstore.config import arguments
from segstore.coordinator.open import open as open_store
from segstore.coordinator.structs import TopicPartition
from segstore.errors import (
    ArchiveError,
    CorruptArchiveError,
    CorruptCheckpointError,
    InvalidArgumentError,
    InvalidTopicError,
    InvalidTypeError,
)
from segstore.files import Files
from segstore.storage.context import os_errors
from segstore.storage.inbox.adopted_ids import within
from segstore.storage.meta.topic_info import CLUSTER_METADATA, INTERNAL, parse_settings
from segstore.storage.meta.topics import TopicFiles, TopicInfo
from segstore.storage.new_store import NewCheckpoints, NewStore, build_indexes

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_ALWAYS_NEWEST = frozenset({names.PRODUCER_IDS})
"""Small files whose newest content is always restored: a producer id must not be given twice."""


_TRIES = 3  # an archiver may remove objects during a try


class Restored(NamedTuple):
    """The result of `restore`. `bytes` is the size of the logs. `time` is the moment (ms) of the restored
    state: that of the archive's newest commit, or the requested time if it is earlier.
    """

    partitions: int
    segments: int
    bytes: int
    time: int


class _Archive(Objects, ReadableObjects, Protocol):
    """The methods of `remote.RemoteFiles` that a restore uses."""


def restore(
    uri: str | os.PathLike[str],
    path: str | os.PathLike[str],
    at: int | datetime | Mapping[TopicPartition, int] | None = None,
    topics: str | Iterable[str] | None = None,
    *,
    progress: Progress | None = None,
    filesystem: FileSystem | None = None,
    files: Files | None = None,
) -> Restored:
    """Make a store at `path`, which must be missing or an empty directory, from the archive at `uri`, a URI
    such as `s3://bucket/log` or a directory.

    Without `at` the newest state is restored. If `at` is a time, in ms since the epoch or as a datetime with
    a zone, each partition ends before its first record that is stamped later; log start offsets, topics and
    their settings are restored as they were at that time. If `at` is a mapping of end offsets by
    TopicPartition, these partitions end at these offsets, and all other partitions are whole. If `topics`
    (names) are given, only these topics and the internal topics are restored.

    Topics keep their ids, and each partition begins a new leader epoch, so that followers of the store notice
    that the store lacks records. A transaction that was committed or aborted is whole in all restored
    partitions; an open transaction is aborted. A partition loses its part of a transaction in two cases.
    First: the partition's requested end offset is within or before this part. Second: the transaction was
    committed by the requested time, but an earlier record of the partition is stamped later than that time.
    Only a clock that runs ahead, or a timestamp in the future, can cause the second case.

    `progress` is called with numbers of written bytes of logs. `filesystem` is used instead of the URI's file
    system.

    Raises InvalidArgumentError, InvalidTypeError; ArchiveError if the archive does not exist, can't be
    reached, or lacks a requested topic or offset; CorruptArchiveError, which names an object that is damaged
    or missing; StorageError, with EBUSY if another restore runs at `path`. After an error no file is left.
    """
    cut, wanted, target = parse_at(at), _topic_names(topics), arguments.path("path", path)
    files = files or Files()
    remote = RemoteFiles(uri, filesystem, files)
    with os_errors(), ExitStack() as stack:
        new = NewStore(files, target, names.RESTORING, "restored store")
        stack.enter_context(new.alone())
        for tries_left in reversed(range(_TRIES)):
            new.begin()
            try:
                made = _Restoring(files, remote, new.path, cut).run(wanted, progress or (lambda _: None))
                _open_once(files, new.path)
                break
            except BaseException as error:
                new.drop()
                if not (tries_left and _was_removed(remote, error)):
                    raise
        new.finish()
    return made


def _was_removed(remote: RemoteFiles, error: BaseException) -> bool:
    """Return whether an error is about an object that the newest state no longer names. An archiver may have
    removed the object during the restore.
    """
    return isinstance(error, CorruptArchiveError) and error.object not in named_objects(remote).objects


def _topic_names(topics: object) -> frozenset[str] | None:
    """Return the names of the topics to restore, or None for all."""
    if topics is None:
        return None
    given = (topics,) if isinstance(topics, str) else topics
    if not isinstance(given, Iterable):
        raise InvalidTypeError(f"topics must be names of topics, not {type(topics).__name__}")
    found = frozenset(names.check_topic(each) for each in given)
    if not found:
        raise InvalidArgumentError("topics=[]: give at least one topic's name, or None for all topics")
    return found


def _checked(topic: str, state: ArchiveState) -> str:
    try:
        return names.check_topic(topic)
    except InvalidTopicError as error:
        raise CorruptArchiveError(str(state.name), str(error)) from None


def _open_once(files: Files, path: str) -> None:
    """Open and close the store. The open begins leader epochs, completes transactions, and raises an error if
    the store is damaged.
    """
    with open_store(path, files=files) as store:
        build_indexes(store)


class _Restoring:
    def __init__(self, files: Files, remote: _Archive, target: str, cut: Cut) -> None:
        self._files, self._remote, self._target, self._cut = files, remote, target, cut
        newest = read_state(remote)
        self._is_newest = cut.time is None or cut.time >= newest.time
        state = newest if self._is_newest or not newest.ways else read_state(remote, cut.time)
        self._newest, self._state = newest, state
        self._time = None if self._is_newest else cut.time
        """The time for which topics and settings are restored, or None for their newest state."""
        self._checkpoints = NewCheckpoints()

    def run(self, wanted: frozenset[str] | None, progress: Progress) -> Restored:
        """Make all files of the store, durably."""
        chosen = self._chosen(wanted)
        self._check_ends({topic.name: topic for topic in chosen})
        settings = TopicFiles(self._files, self._target)
        self._files.mkdir(os.path.join(self._target, names.OURS))
        settings.prepare()
        partitions = [each for topic in chosen for each in self._topic(topic, settings)]
        self._fetch(partitions, progress)
        made = Restored(len(partitions), 0, 0, self._state.time if self._time is None else self._time)
        for each in partitions:
            each.finish(each.key.topic_id, self._newest_epoch(each.key))
            self._checkpoints.add(each.key[::2], each.start, each.end, each.cleaned)
            made = made._replace(segments=made.segments + each.segments, bytes=made.bytes + each.size)
        self._rest()
        return made

    # --- topics ---------------------------------------------------------------------------

    def _chosen(self, wanted: frozenset[str] | None) -> list[ArchivedTopic]:
        """Return the topics to restore. Raises ArchiveError, which lists the archive's topics, if a wanted
        topic is missing.
        """
        there = [name for name in self._state.topic_names(self._time) if name != CLUSTER_METADATA]
        missing = sorted((wanted or frozenset()) - set(there))
        if missing:
            then = "" if self._time is None else f" at {self._time} ms"
            shown = ", ".join(there) or "none"
            raise ArchiveError(
                f"{self._remote.uri}: topic {missing[0]!r} is not there{then}; there are: {shown}"
            )
        chosen = [name for name in there if wanted is None or name in wanted or name in INTERNAL]
        found = [self._state.topic(_checked(name, self._state), self._time) for name in chosen]
        return [each for each in found if each is not None]

    def _check_ends(self, topics: Mapping[str, ArchivedTopic]) -> None:
        for name, number in self._cut.ends:
            topic = topics.get(name)
            if topic is None:
                shown = ", ".join(topics) or "none"
                raise ArchiveError(
                    f"at: topic {name!r} is not among those that are restored, which are: {shown}"
                )
            if number not in topic.partitions:
                raise ArchiveError(
                    f"at: topic {name!r} has no partition {number}; it has {list(topic.partitions)}"
                )

    def _topic(self, topic: ArchivedTopic, settings: TopicFiles) -> Iterator[RestoredPartition]:
        """Write a topic's settings, and yield its partitions."""
        data, info = version_at(topic.settings, self._time), None
        if data:
            info = self._settings(topic.name, data)
            settings.settings(topic.name).write(data)
        for number in topic.partitions if info is None else info.partition_ids:
            key = TopicIdPartition(topic.name, topic.topic_id, number)
            archived = self._state.partitions.get(key)
            if archived is not None:
                yield self._partition(archived, info)
            elif (topic.name, number) in self._cut.ends:
                raise ArchiveError(f"{key} can't end at an offset: nothing of it is in the archive yet")

    def _settings(self, name: str, data: bytes) -> TopicInfo:
        where = str(self._state.name)
        try:
            return parse_settings(name, data, where)[0].info
        except CorruptCheckpointError as error:
            raise CorruptArchiveError(where, f"the settings of topic {name!r}: {error.reason}") from None

    def _partition(self, archived: ArchivedPartition, info: TopicInfo | None) -> RestoredPartition:
        key, gapped = archived.key, info is None or info.gapped or bool(info.compacted)
        directory = os.path.join(self._target, names.partition_dir(key.topic, key.partition))
        self._files.mkdir(directory)
        listed = read_segments(self._remote, archived)
        return RestoredPartition(
            self._files, directory, archived, listed, self._cut, self._time, gapped=gapped
        )

    def _newest_epoch(self, key: TopicIdPartition) -> int:
        newest = self._newest.partitions.get(key)
        return max((epoch for epoch, _ in newest.epochs), default=-1) if newest else -1

    # --- files ----------------------------------------------------------------------------

    def _fetch(self, partitions: list[RestoredPartition], progress: Progress) -> None:
        """Download the logs of all partitions, each up to its end."""
        left = partitions
        while left:
            # Pieces are downloaded first, because an archiver removes them after their segment is archived.
            tasks = sorted((task for each in left for task in each.downloads()), key=lambda it: it.is_sealed)
            download(self._remote, self._files, tasks, progress)
            left = [each for each in left if not each.cut()]

    def _rest(self) -> None:
        """Write the small files. They are written last, because their content must fit the restored logs."""
        for name, versions in self._state.files.items():
            if name in _ALWAYS_NEWEST:
                data = version_at(self._newest.files.get(name, versions), None)
            else:
                data = version_at(versions, self._time)
            if data is None:
                continue
            if "/" in name or name in ("", ".", ".."):
                raise CorruptArchiveError(str(self._state.name), f"{name!r} is no name of a small file")
            if name in (names.ADOPTED, names.ADOPTED_COPY):
                data = within(data, self._checkpoints.ends)
            self._files.write_atomic(os.path.join(self._target, names.OURS, name), data)
        self._checkpoints.write(self._files, self._target)
        self._files.sync_dir(self._target)
