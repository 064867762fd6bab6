"""`.segstore/inbox/topics/<topic>.json`: the topics of a replicated store, which its writer publishes for
stagers.

A directory of a replicated store has a settings file for the topics of its own partitions only. A stager
needs the settings of all topics, because any directory takes staged records of any partition. The file
`<topic>.json` has the format of a settings file (`meta.topic_info`). The file is a copy from the metadata
log, and the writer rewrites it at each open. So it is not synced, and a damaged file is an error for stagers
only.

Threads and processes: the directory's own thread writes the files; any thread of any process may read them.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Mapping
from contextlib import suppress

from segstore import names
from segstore.errors import UnknownTopicOrPartitionError
from segstore.files import Files
from segstore.storage.inbox.layout import Folder
from segstore.storage.meta.small_files import NOT_A_FILE
from segstore.storage.meta.topic_info import TopicInfo, format_settings, parse_settings
from segstore.storage.meta.topics import TopicFiles, find_topic

_FORM = ".json"
_MOST_BYTES = 1 << 24


def write_topic_files(
    folder: Folder, topics: Mapping[str, TopicInfo], changed: Collection[str] | None
) -> None:
    """Write the file of each topic in `changed` (None: of each topic), or remove it if `topics` lacks the
    topic. Raises OSError.
    """
    folder.files.ensure_directory(folder.topics)
    existing = {name.removesuffix(_FORM) for name in folder.files.listdir(folder.topics)}
    for topic in sorted((existing | topics.keys()) if changed is None else changed):
        path, info = _path(folder, topic), topics.get(topic)
        if info is None:
            with suppress(FileNotFoundError):
                folder.files.unlink(path)
        elif _read(folder, topic) != (data := format_settings(info)):
            folder.files.write_atomic(path, data, sync=False)


def _path(folder: Folder, topic: str) -> str:
    return f"{folder.topics}/{topic}{_FORM}"


def _read(folder: Folder, topic: str) -> bytes | None:
    try:
        return folder.files.read_file(_path(folder, topic), _MOST_BYTES)
    except OSError as error:
        if error.errno in NOT_A_FILE | {errno.ENOENT}:
            return None
        raise


def _is_topic(name: object) -> bool:
    parsed = names.parse_partition_dir(f"{name}-0") if isinstance(name, str) else None
    return parsed == (name, 0)


class StagersTopics:
    """The topics of a store, for a stager, which does not open the store. In a directory of a replicated
    store the topics are read from `.segstore/inbox/topics/`. A topic is read at its first use, and cached.
    """

    def __init__(self, files: Files, root: str) -> None:
        """Open the topics of the store at `root`. Raises CorruptCheckpointError, OSError."""
        self._folder, self._files = Folder(files, root), TopicFiles(files, root)
        self.replicated = self._files.is_replicated()
        self._held: dict[str, TopicInfo] = {}

    @property
    def names(self) -> list[str]:
        """Return the names of all topics. Raises OSError."""
        if not self.replicated:
            return sorted(self._files.load()[0])
        files, path = self._folder.files, self._folder.topics
        listed = files.listdir(path) if files.exists(path) else []
        return sorted(name.removesuffix(_FORM) for name in listed if name.endswith(_FORM))

    def find(self, topic: str, partition: int | None = None) -> TopicInfo:
        """Return the topic. Raises OSError, UnknownTopicOrPartitionError, and CorruptCheckpointError if the
        topic's settings are damaged.
        """
        if not isinstance(topic, str) or topic not in self._held:
            if not self.replicated:
                self._held = self._files.load()[0]
            elif _is_topic(topic) and (data := _read(self._folder, topic)) is not None:
                self._held[topic] = parse_settings(topic, data, _path(self._folder, topic))[0].info
            elif isinstance(topic, str):
                there = ", ".join(self.names) or "none"
                raise UnknownTopicOrPartitionError(f"no topic {topic!r}; there are: {there}")
        return find_topic(self._held, topic, partition)
