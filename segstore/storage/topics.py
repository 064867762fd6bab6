"""Owns `.segstore/topics/<topic>.json`: a topic's settings, number of partitions and id.

The file is the authority for a topic of ours: it is written, synced, before the first partition
directory is made and removed after the last one is gone, so that a crash within `create`,
`add_partitions` or `delete` is finished by `finish` at the next open. A topic that has only
directories (a broker's) is known by them and has no settings of ours.

Threads: the store's administration lock is held around every change; `all()` may be read by any.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from segstore import names
from segstore.config import TopicConfig
from segstore.errors import CorruptCheckpointError, InvalidTypeError, UnknownTopicOrPartitionError
from segstore.files import Files

_TRIES = 100

INTERNAL = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
)


@dataclass(frozen=True)
class TopicInfo:
    """A topic as `Store.topics()` shows it.

    `partitions` is their number, `partition_ids` says which (a copied broker's directory may
    hold only some); `config` the settings that were made, by Kafka's names; `settings` all of them.
    `ours` is False for a topic that has no settings of ours.
    """

    name: str
    partition_ids: tuple[int, ...]
    topic_id: str
    settings: TopicConfig = field(default_factory=TopicConfig, repr=False)
    ours: bool = True

    @property
    def partitions(self) -> int:
        return len(self.partition_ids)

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.settings.to_mapping())

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL


class TopicFiles:
    """Reads and writes the settings files, and the directories of topics that have none."""

    def __init__(self, files: Files, root: str) -> None:
        self._files, self._root = files, root
        self._directory = os.path.join(root, names.OURS, names.TOPICS)

    def _path(self, topic: str) -> str:
        return os.path.join(self._directory, topic + ".json")

    def partition_path(self, topic: str, partition: int) -> str:
        return os.path.join(self._root, names.partition_dir(topic, partition))

    def version(self) -> tuple[int, int]:
        """Changes whenever a topic is made, altered or deleted: stamps of the two directories. OSError."""
        return self._files.modified(self._root), self._files.modified(self._directory)

    def prepare(self) -> None:
        """Make the directory for settings; OSError."""
        if not self._files.exists(self._directory):
            self._files.mkdir(self._directory)
            self._files.sync_dir(os.path.dirname(self._directory))

    def load(self) -> tuple[dict[str, TopicInfo], list[str]]:
        """Topics, and the names of those whose deletion was begun and not finished.

        Where another process makes and deletes topics meanwhile, the look is taken again.
        """
        for left in reversed(range(_TRIES)):
            settled = self._settled()
            try:
                looked = self._look(settled)
            except FileNotFoundError:
                if not left:
                    raise
                continue
            if set(self._settled()) == set(settled):
                break
        return looked

    def _look(self, settled: list[str]) -> tuple[dict[str, TopicInfo], list[str]]:
        found: dict[str, list[int]] = {}
        for name in self._files.listdir(self._root):
            parsed = names.parse_partition_dir(name)
            if parsed is not None:
                found.setdefault(parsed[0], []).append(parsed[1])
        foreign = found.keys() - set(settled)
        topics = {name: self._foreign(name, sorted(found[name])) for name in foreign}
        dying = []
        for topic in settled:
            info, deleting = self._read(topic)
            topics[topic] = info
            if deleting:
                del topics[topic]
                dying.append(topic)
        return topics, dying

    def _settled(self) -> list[str]:
        if not self._files.exists(self._directory):
            return []
        return [n[: -len(".json")] for n in self._files.listdir(self._directory) if n.endswith(".json")]

    def _foreign(self, topic: str, ids: list[int]) -> TopicInfo:
        path = os.path.join(self.partition_path(topic, ids[0]), names.PARTITION_METADATA)
        topic_id = ""
        # Kafka makes the file before it writes it: an empty one says as much as none.
        if self._files.exists(path) and self._files.size(path):
            topic_id = names.parse_partition_metadata(self._files.read_file(path))
        return TopicInfo(topic, tuple(ids), topic_id, ours=False)

    def _read(self, topic: str) -> tuple[TopicInfo, bool]:
        path = self._path(topic)
        try:
            held = json.loads(self._files.read_file(path))
            config = TopicConfig.parse(held["config"])
            ids = held.get("partition_ids", range(held["partitions"]))
            info = TopicInfo(topic, tuple(ids), held["topic_id"], config)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptCheckpointError(path, 1, f"no topic settings: {error}") from error
        return info, bool(held.get("deleting"))

    def write(self, info: TopicInfo, *, deleting: bool = False) -> None:
        """Write a topic's settings, whole or not at all; OSError."""
        all_of_them = tuple(range(info.partitions))
        held = {
            "version": 1,
            "topic_id": info.topic_id,
            "partitions": info.partitions,
            # A copied broker's directory may hold only some of a topic's partitions.
            **({} if info.partition_ids == all_of_them else {"partition_ids": info.partition_ids}),
            "config": info.config,
            **({"deleting": True} if deleting else {}),
        }
        self._files.write_atomic(self._path(info.name), json.dumps(held, indent=1).encode() + b"\n")

    def forget(self, topic: str) -> None:
        """Remove a topic's settings: its directories are gone."""
        if self._files.exists(self._path(topic)):
            self._files.unlink(self._path(topic))
            self._files.sync_dir(self._directory)

    def bury(self, topic: str) -> list[str]:
        """Move a topic's directories out of sight, in the form that Kafka gives to deleted ones: their old
        paths.
        """
        gone = []
        for name in self._files.listdir(self._root):
            parsed = names.parse_partition_dir(name)
            if parsed is not None and parsed[0] == topic:
                grave = names.deleted_dir(topic, parsed[1], uuid.uuid4().hex)
                gone.append(os.path.join(self._root, name))
                self._files.rename(gone[-1], os.path.join(self._root, grave))
        self._files.sync_dir(self._root)
        return gone

    def remove_buried(self) -> None:
        """Remove the files of all deleted partitions."""
        for name in self._files.listdir(self._root):
            if names.is_deleted_dir(name):
                self._remove_tree(os.path.join(self._root, name))
        self._files.sync_dir(self._root)

    def _remove_tree(self, directory: str) -> None:
        for name in self._files.listdir(directory):
            self._files.unlink(os.path.join(directory, name))
        self._files.rmdir(directory)


def new_topic(name: str, partitions: int, config: Mapping[str, Any]) -> TopicInfo:
    """A topic that is not there yet; ConfigError, InvalidTopicError."""
    settings = TopicConfig.parse(config)
    return TopicInfo(names.check_topic(name), tuple(range(partitions)), names.new_topic_id(), settings)


def with_config(info: TopicInfo, config: Mapping[str, Any]) -> TopicInfo:
    """The topic with some settings changed; a value of None goes back to the default. ConfigError."""
    return replace(info, settings=info.settings.replace(config), ours=True)


def find_topic(topics: Mapping[str, TopicInfo], name: str, partition: int | None = None) -> TopicInfo:
    """UnknownTopicOrPartitionError, which says what is there; InvalidTypeError."""
    if not isinstance(name, str):
        raise InvalidTypeError(f"topic must be a str, not {type(name).__name__}")
    if name not in topics:
        there = ", ".join(sorted(topics)) or "none"
        raise UnknownTopicOrPartitionError(f"no topic {name!r}; there are: {there}")
    info = topics[name]
    if partition is not None and partition not in info.partition_ids:
        raise UnknownTopicOrPartitionError(
            f"topic {name!r} has no partition {partition}; it has {list(info.partition_ids)}"
        )
    return info
