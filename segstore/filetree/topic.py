"""The topic that holds a file tree: made compacted, with one partition. On disk: through the engine.

Threads: any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from segstore.errors import ConfigError, TopicAlreadyExistsError
from segstore.storage.meta.topic_info import check_not_internal
from segstore.storage.meta.topics import find_topic
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

CHUNK_BYTES = 1 << 20
SETTINGS: Mapping[str, Any] = {
    "cleanup.policy": "compact",
    "max.message.bytes": 8 << 20,
    "segment.bytes": 64 << 20,
    "flush.ms": 1000,
}
"""What nobody asked to be synced at once is synced within a second. A batch of 8 MiB holds a rename of some
20,000 files."""


def files_log(store: Store, topic: str) -> PartitionLog:
    """To read. UnknownTopicOrPartitionError; ConfigError where the topic can't hold files."""
    info = find_topic(store.topics(), topic)
    if info.partition_ids != (0,):
        raise ConfigError(f"topic {topic!r} has partitions {list(info.partition_ids)}: files are kept in one")
    policy = info.settings.cleanup_policy
    if info.ours and "compact" not in policy:
        raise ConfigError(f"topic {topic!r} has cleanup.policy={policy}: files are kept in a compacted topic")
    return store.partition(topic, 0)


def make_topic(store: Store, topic: str, config: Mapping[str, Any]) -> None:
    """Where it is not there. `config`: settings in place of SETTINGS'. ConfigError, StorageError."""
    check_not_internal(topic, "files are kept in a topic of their own")
    if topic in store.topics():
        return
    try:
        store.create_topic(topic, config={**SETTINGS, **config})
    except TopicAlreadyExistsError:
        return  # by another thread, a moment ago
