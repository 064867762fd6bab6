"""Reads and writes the topics' settings files, `.segstore/topics/<topic>.json` with its second copy
`<topic>.copy`, and finds and renames the partitions' directories.

A settings file has a topic's settings, number of partitions and id, with a checksum (`framed`). A topic of
segstore exists if its settings file exists. The file is written and synced before the first partition
directory is made, and removed after the last directory, so that after a crash the next open can finish
`create`, `add_partitions` or `delete` of `TopicAdmin`. A broker's topic has no settings file: its partitions
and id are found in its directories. If both copies of a settings file are damaged, the topic's partitions and
id are found in its directories too, and the settings count as lost (`TopicInfo.lost`). If a topic with
damaged settings has no logs, it is listed with an `error`.

Threads: the store's lock is held during each change; any thread may read.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from segstore import names
from segstore.config import TopicConfig
from segstore.errors import (
    CorruptCheckpointError,
    InvalidTopicError,
    InvalidTypeError,
    StorageError,
    UnknownTopicOrPartitionError,
    copy_of,
)
from segstore.files import Files
from segstore.files.reserve import in_reserve
from segstore.logger import Logger
from segstore.storage.meta.small_files import NOT_A_FILE, Copies, Copy, unreadable
from segstore.storage.meta.topic_info import (
    CLUSTER_METADATA,
    HELD,
    INTERNAL,
    MADE_WITH,
    TopicInfo,
    TopicSettingsFile,
    format_settings,
    parse_settings,
)

_TRIES = 100
_MOST_METADATA = 4096
_MOST_SETTINGS = 1 << 24

_FORM = ".json"
_COPY = ".copy"

__all__ = ["INTERNAL", "NOT_A_FILE", "TopicFiles", "TopicInfo", "find_topic", "new_topic", "with_config"]

log = Logger("segstore")

# The errors that a file of another program in a deleted partition's directory may cause when the directory is
# removed.
NOT_OURS = frozenset({errno.EISDIR, errno.EPERM, errno.EACCES, errno.EBUSY, errno.ENOTEMPTY, errno.ENOTDIR})


class TopicFiles:
    """Reads and writes settings files and directories of topics."""

    def __init__(self, files: Files, root: str) -> None:
        self._files, self._root = files, root
        self._base = names.below(root, "")
        self._directory = f"{self._base}{names.OURS}/{names.TOPICS}"
        self.no_topics: dict[str, list[int]] = {}
        """The directories that are named like partitions, but have no metadata and no log: their partition
        numbers by topic name. `load` sets this.
        """

    def settings(self, topic: str) -> Copies[TopicSettingsFile]:
        """Return the two copies of a topic's settings."""
        stem = f"{self._directory}/{topic}"
        return Copies(self._files, stem + _FORM, stem + _COPY, _MOST_SETTINGS, partial(parse_settings, topic))

    def partition_path(self, topic: str, partition: int) -> str:
        return self._base + names.partition_dir(topic, partition)

    def keeps(self, topic: str) -> bool | None:
        """Return False if the deletion of a topic has begun, else True; None if the topic has no settings
        file. Raises CorruptCheckpointError, OSError.
        """
        held = self.settings(topic).believed().content
        return None if held is None else not held.deleting

    def is_replicated(self) -> bool:
        """Return whether the root is a directory of a replicated store. Raises CorruptCheckpointError,
        OSError.
        """
        there = self._files.exists(names.below(self._root, names.META_PROPERTIES))
        return there and bool(self.keeps(CLUSTER_METADATA))

    def version(self) -> tuple[int, int]:
        """Return (modification time of the root, modification time of the settings directory). At least one
        of the two times changes when a topic is made, altered or deleted. Raises OSError.
        """
        return self._files.modified(self._root), self._files.modified(self._directory)

    def prepare(self) -> None:
        """Make the directory for settings. Raises OSError."""
        self._files.ensure_directory(self._directory)

    def load(
        self, copies: dict[str, Copy[TopicSettingsFile]] | None = None
    ) -> tuple[dict[str, TopicInfo], list[str]]:
        """Return (topics by name, names of topics whose deletion has begun and is not finished). For each
        topic with settings, the `Copy` of the settings that was used is added to `copies`.

        If another process makes or deletes topics during this call, the directories are read again.
        """
        for left in reversed(range(_TRIES)):
            stated = self._with_settings()
            try:
                looked = self._look(stated, {} if copies is None else copies)
            except FileNotFoundError:
                if not left:
                    raise
                continue
            if set(self._with_settings()) == set(stated):
                break
        return looked

    def _look(
        self, stated: list[str], copies: dict[str, Copy[TopicSettingsFile]]
    ) -> tuple[dict[str, TopicInfo], list[str]]:
        found: dict[str, list[int]] = {}
        for name in self._files.directories(self._root):
            parsed = names.parse_partition_dir(name)
            if parsed is not None:
                found.setdefault(parsed[0], []).append(parsed[1])
        topics, self.no_topics = {}, {}
        for name in found.keys() - set(stated):
            foreign = self._foreign(name, sorted(found[name]))
            if foreign is not None:
                topics[name] = foreign
            else:
                self.no_topics[name] = sorted(found[name])
        dying = []
        for topic in stated:
            info, deleting = self._read(topic, sorted(found.get(topic, ())), copies)
            if deleting:
                dying.append(topic)
            else:
                topics[topic] = info
        return topics, dying

    def _with_settings(self) -> list[str]:
        try:
            found = self._files.listdir(self._directory)
        except (FileNotFoundError, NotADirectoryError):
            if self._files.exists(self._directory):
                raise
            return []
        return sorted({n.removesuffix(s) for n in found for s in (_FORM, _COPY) if n.endswith(s)})

    def _foreign(self, topic: str, ids: list[int]) -> TopicInfo | None:
        """Return a topic without a settings file. The topic's id is the first topic id that is found in the
        partitions' metadata. Return None if no directory of the topic has metadata or a log.
        """
        error = None
        for number in ids:
            try:
                topic_id = self.read_id(topic, number)
            except (CorruptCheckpointError, StorageError) as wrong:
                error = error or copy_of(wrong)
                continue
            if topic_id:
                return TopicInfo(topic, tuple(ids), topic_id, ours=False)
        if self._logs(topic, ids):
            return TopicInfo(topic, tuple(ids), "", ours=False)
        return None if error is None else TopicInfo(topic, tuple(ids), "", ours=False, error=error)

    def read_id(self, topic: str, partition: int) -> str:
        """Return the topic id in a partition's metadata; "" if there is no metadata, or no id. Raises
        CorruptCheckpointError, OSError; StorageError if the path is no regular file.
        """
        directory = self.partition_path(topic, partition)
        path = f"{directory}/{names.PARTITION_METADATA}"
        try:
            self._files.check_directory(directory)
            data = self._files.read_file(path, _MOST_METADATA)
            # An empty file counts as missing, because Kafka makes the file before it writes the content.
            return names.parse_partition_metadata(data, path) if data else ""
        except FileNotFoundError:
            return ""
        except (CorruptCheckpointError, OSError) as error:
            raise unreadable(error, path) from error

    def readable_id(self, topic: str, partition: int) -> str:
        """Return the topic id in a partition's metadata; "" if there is no metadata or no id, or if the
        metadata can't be read.
        """
        try:
            return self.read_id(topic, partition)
        except (CorruptCheckpointError, StorageError):
            return ""

    def read_ids(self, topic: str, ids: Collection[int]) -> Counter[str]:
        """Return, for each topic id, the number of these partitions that have the id in their metadata."""
        votes: Counter[str] = Counter()
        for number in ids:
            votes[self.readable_id(topic, number)] += 1
        del votes[""]
        return votes

    def _logs(self, topic: str, ids: Collection[int]) -> bool:
        """Return whether one of these partitions has a log."""
        directories = [self.partition_path(topic, number) for number in ids]
        return any(
            not self._files.is_symlink(path) and names.has_log(self._files.listdir(path))
            for path in directories
        )

    def _read(
        self, topic: str, ids: list[int], copies: dict[str, Copy[TopicSettingsFile]]
    ) -> TopicSettingsFile:
        try:
            names.check_topic(topic)
            copies[topic] = self.settings(topic).believed()
        except (CorruptCheckpointError, InvalidTopicError, OSError) as error:
            return TopicSettingsFile(self._without_settings(topic, ids, error), False)
        held = copies[topic].content
        if held is None:
            raise FileNotFoundError(errno.ENOENT, "The topic was deleted meanwhile", topic)
        return held

    def _without_settings(
        self, topic: str, ids: list[int], error: CorruptCheckpointError | InvalidTopicError | OSError
    ) -> TopicInfo:
        """Return a topic whose settings can't be read, with the partitions and the id that its directories
        have.
        """
        path = self.settings(topic).paths[0]
        if isinstance(error, InvalidTopicError):
            error = CorruptCheckpointError(path, 0, f"no topic settings: {error}")
        wrong = copy_of(unreadable(error, path))
        if not self._logs(topic, ids):
            return TopicInfo(topic, tuple(ids), "", ours=False, error=_advised(wrong, path))
        votes = self.read_ids(topic, ids).most_common(1)
        topic_id = votes[0][0] if votes else ""
        held = TopicConfig.parse({**HELD, **MADE_WITH.get(topic, {})})
        return TopicInfo(topic, tuple(ids), topic_id, held, ours=False, lost=wrong)

    def write(self, info: TopicInfo, *, deleting: bool = False) -> None:
        """Write both copies of a topic's settings. If `deleting`, the copies say that the topic's deletion
        has begun. Raises OSError.
        """
        self.settings(info.name).write(format_settings(info, deleting=deleting))

    def restore(self, info: TopicInfo) -> None:
        """Write a topic's old settings again after a failed write, which may have left the new settings in
        one of the files. Raises OSError.
        """
        if info.ours:
            self.write(info)
        elif info.error is None:
            self.forget(info.name)

    def forget(self, topic: str) -> None:
        """Remove both copies of a topic's settings. A deletion has renamed the topic's directories before."""
        self.settings(topic).forget()

    def check_free(self, topic: str) -> None:
        """Raise InvalidTopicError if a directory is named like a partition of the new topic, and has files of
        another program, because a later deletion of the topic would remove these files. Raises OSError.
        """
        for number in self.no_topics.get(topic, ()):
            path = self.partition_path(topic, number)
            held = sorted(self._files.listdir(path)) if self._files.exists(path) else []
            if held:
                raise InvalidTopicError(
                    f"topic {topic!r}: {path} is no partition, and holds {held[0]!r}; move it away, or take"
                    " another name"
                )

    def bury(self, topic: str, but: Collection[int] = ()) -> list[str]:
        """Rename the directories of a topic's partitions, except the partitions in `but`, and return the old
        paths. The new names are the names that Kafka gives deleted partitions.
        """
        gone = []
        for name in self._files.directories(self._root):
            parsed = names.parse_partition_dir(name)
            if parsed is not None and parsed[0] == topic and parsed[1] not in but:
                grave = names.deleted_dir(topic, parsed[1], uuid.uuid4().hex)
                gone.append(os.path.join(self._root, name))
                in_reserve(partial(self._files.rename, gone[-1], os.path.join(self._root, grave)))
        self._files.sync_dir(self._root)
        return gone

    def buried(self) -> list[str]:
        """Return the paths of the directories of deleted partitions. Raises OSError."""
        found = filter(names.is_deleted_dir, self._files.directories(self._root))
        return [os.path.join(self._root, name) for name in sorted(found)]

    def remove_buried(self) -> None:
        """Remove the directories of all deleted partitions. An object that can't be removed stays, and a
        warning is logged. Raises OSError.
        """
        for grave in self.buried():
            left = self._remove_grave(grave)
            if left:
                log.warning("%s: the partition was deleted, but there is also %s, which stays", grave, left)
        self._files.sync_dir(self._root)

    def _remove_grave(self, grave: str) -> list[str]:
        """Remove a deleted partition's directory and its files, and return the names of objects that can't be
        removed.
        """
        if self._files.is_symlink(grave):
            self._files.unlink(grave)
            return []
        paths = [os.path.join(grave, name) for name in sorted(self._files.listdir(grave))]
        left = [os.path.basename(path) for path in paths if not self._removed(self._files.unlink, path)]
        return left if left or self._removed(self._files.rmdir, grave) else ["."]

    def _removed(self, remove: Callable[[str], None], path: str) -> bool:
        try:
            remove(path)
        except OSError as error:
            if error.errno not in NOT_OURS:
                raise
            return False
        return True


def _advised(
    error: CorruptCheckpointError | StorageError, path: str
) -> CorruptCheckpointError | StorageError:
    """Return the error for damaged settings of a topic without logs, with advice for the operator in its
    text.
    """
    stem = os.path.basename(path).removesuffix(_FORM)
    advice = (
        f"the topic has no log: restore the file from a backup, or remove {stem}{_FORM} and {stem}{_COPY}"
    )
    if isinstance(error, CorruptCheckpointError):
        return CorruptCheckpointError(error.file, error.line, f"{error.reason}; {advice}")
    return StorageError(error.errno, f"{error.strerror}; {advice}", path)


def new_topic(name: str, partitions: int, config: Mapping[str, Any]) -> TopicInfo:
    """Return a new topic, which is not on disk yet. Raises ConfigError, InvalidTopicError."""
    settings = TopicConfig.parse(config)
    return TopicInfo(names.check_topic(name), tuple(range(partitions)), names.new_topic_id(), settings)


def check_collision(name: str, topics: Iterable[str]) -> None:
    """Raise InvalidTopicError if a topic's name differs from another topic's name only in dots and
    underscores, because the names of metrics have underscores for both (Kafka: Topic.hasCollision).
    """
    if "." not in name and "_" not in name:
        return
    unified = name.replace(".", "_")
    same = sorted(each for each in topics if each != name and each.replace(".", "_") == unified)
    if same:
        others = ", ".join(map(repr, same))
        raise InvalidTopicError(f"topic {name!r} collides with {others}: dots and underscores count as one")


def with_config(info: TopicInfo, config: Mapping[str, Any]) -> TopicInfo:
    """Return the topic with the settings in `config` changed; the value None restores the default. Raises
    ConfigError.
    """
    return replace(info, settings=info.settings.replace(config), ours=True, lost=None)


def check_there(topics: Collection[str], name: str) -> None:
    """Raise InvalidTypeError if the name is no str. Raise UnknownTopicOrPartitionError, which lists the
    existing topics, if there is no such topic.
    """
    if not isinstance(name, str):
        raise InvalidTypeError(f"topic must be a str, not {type(name).__name__}")
    if name not in topics:
        there = ", ".join(sorted(topics)) or "none"
        raise UnknownTopicOrPartitionError(f"no topic {name!r}; there are: {there}")


def find_topic(topics: Mapping[str, TopicInfo], name: str, partition: int | None = None) -> TopicInfo:
    """Return the topic with this name. Raises the errors of `check_there`, the topic's own `error`, and
    UnknownTopicOrPartitionError if the topic has no partition with the number `partition`.
    """
    check_there(topics, name)
    info = topics[name]
    if info.error is not None:
        raise copy_of(info.error)
    if partition is not None and partition not in info.partition_ids:
        raise UnknownTopicOrPartitionError(
            f"topic {name!r} has no partition {partition}; it has {list(info.partition_ids)}"
        )
    return info
