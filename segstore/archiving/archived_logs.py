"""`ArchivedLogs`: looks up the logs of topics and partitions in an archive's newest state.

Nothing is written to the archive. Lists of segments are cached until a commit replaces them. Threads: one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from segstore.archiving.archived_log import ArchivedLog
from segstore.archiving.chain import Objects, newer_state, read_state
from segstore.archiving.log_contents import LogContents, contents_of
from segstore.archiving.object_names import TopicIdPartition
from segstore.archiving.remote import RemoteFiles
from segstore.archiving.segment_list import SegmentList, read_segments
from segstore.archiving.state import ArchivedPartition, ArchivedTopic
from segstore.closing import Closing
from segstore.errors import CorruptCheckpointError, UnknownTopicOrPartitionError
from segstore.storage.meta.topic_info import parse_settings

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


class _KnownContents(NamedTuple):
    """The contents of a log, and the entries of the state from which the contents were made."""

    partition: ArchivedPartition
    settings: bytes
    listed: SegmentList
    contents: LogContents


class ArchivedLogs(Closing):
    """The logs of the topics in an archive's newest state, without deleted topics."""

    def __init__(self, uri: str, filesystem: FileSystem | None = None) -> None:
        """Read the newest state of an archive. `uri` and `filesystem` are those of `RemoteFiles`. Raises
        InvalidArgumentError, CorruptArchiveError, UnsupportedFormatError, and ArchiveError if there is no
        archive or it can't be reached.
        """
        self.objects: Objects = RemoteFiles(uri, filesystem)
        self._state = read_state(self.objects)
        self._known: dict[TopicIdPartition, _KnownContents] = {}
        self._logs: dict[TopicIdPartition, ArchivedLog] = {}

    def close(self) -> None:
        """Stop the threads of the logs."""
        for each in self._logs.values():
            each.close()

    def refresh(self) -> None:
        """Read the commits that were written after the last read. Raises the errors of the constructor."""
        self._state = newer_state(self.objects, self._state)

    @property
    def topics(self) -> Mapping[str, Sequence[int]]:
        """Return the numbers of the partitions of each topic."""
        found = {name: self._state.topic(name) for name in self._state.topic_names()}
        return {name: it.partitions for name, it in found.items() if it is not None}

    def topic_id(self, topic: str) -> str:
        """Return the id of a topic, or "" if the topic was created by a broker that gave topics no ids.
        Raises UnknownTopicOrPartitionError.
        """
        return self._topic(topic).topic_id

    def contents(self, topic: str, partition: int) -> LogContents:
        """Return the archived contents of a partition. Raises UnknownTopicOrPartitionError,
        CorruptArchiveError, ArchiveError.
        """
        found = self._topic(topic)
        if partition not in found.partitions:
            raise UnknownTopicOrPartitionError(
                f"{topic}-{partition} is not in the archive; of this topic there are {len(found.partitions)}"
            )
        key = TopicIdPartition(topic, found.topic_id, partition)
        held = self._state.partitions.get(key)
        if held is None:
            return LogContents(key, (), 0, 0, 0, (), -1)
        settings = found.settings[-1][1] if found.settings else b""
        known = self._known.get(key)
        if known is None or known.partition != held or known.settings != settings:
            listed = self._listed(held)
            made = contents_of(held, listed, _gaps_end(found, held, settings))
            known = self._known[key] = _KnownContents(held, settings, listed, made)
        return known.contents

    def log(self, topic: str, partition: int) -> ArchivedLog:
        """Return a log with the contents that it has in the last state that was read. Raises the errors of
        `contents`.
        """
        contents = self.contents(topic, partition)
        found = self._logs.get(contents.key)
        if found is None:
            made = ArchivedLog(self.objects, contents, partial(self._newest, topic, partition))
            found = self._logs[contents.key] = made
        elif found.contents is not contents:
            found.renew(contents)
        return found

    def _topic(self, name: str) -> ArchivedTopic:
        found = self._state.topic(name)
        if found is None:
            there = ", ".join(self._state.topic_names()) or "none"
            raise UnknownTopicOrPartitionError(f"no topic {name!r} in the archive; there are: {there}")
        return found

    def _newest(self, topic: str, partition: int) -> LogContents:
        self.refresh()
        return self.contents(topic, partition)

    def _listed(self, held: ArchivedPartition) -> SegmentList:
        before = self._known.get(held.key)
        if before is not None and before.partition.segments == held.segments:
            return before.listed
        return read_segments(self.objects, held)


def _gaps_end(topic: ArchivedTopic, held: ArchivedPartition, settings: bytes) -> int:
    """Return the offset below which compaction may have left gaps, or -1 if gaps may be anywhere."""
    try:
        info = parse_settings(topic.name, settings, "settings in the archive")[0].info if settings else None
    except CorruptCheckpointError:
        return -1
    return -1 if info is None else info.gaps_end(held.key.partition, held.cleaned)


def open_log(
    uri: str, contents: LogContents, filesystem: FileSystem | None = None, *, read_ahead: bool = True
) -> ArchivedLog:
    """Return a log whose contents were looked up before. The archive's state is read only if an object of
    these contents is gone. Raises InvalidArgumentError, ArchiveError.
    """
    topic, _, partition = contents.key

    def newest() -> LogContents:
        return ArchivedLogs(uri, filesystem).contents(topic, partition)

    return ArchivedLog(RemoteFiles(uri, filesystem), contents, newest, read_ahead=read_ahead)
