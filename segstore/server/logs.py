"""`Logs`: finds the logs of requested partitions, by the topic's name or id.

Owns nothing on disk. Threads: the loop's thread. A log is cached after its first lookup, because a new log
object would read the aborted transactions again. The log of a deleted topic is removed from the cache at its
next lookup.
"""

from __future__ import annotations

from collections.abc import Mapping

from segstore import names
from segstore.errors import FencedLeaderEpochError, UnknownLeaderEpochError, UnknownTopicOrPartitionError
from segstore.server.node import Node
from segstore.storage.meta.topic_info import CLUSTER_METADATA, TopicInfo
from segstore.storage.store.partition_log import PartitionLog

NO_ID = bytes(16)
"""The zero id, which stands for "no topic" (Kafka: Uuid.ZERO_UUID)."""
_NO_TOPIC: tuple[TopicInfo | None, bytes] = None, NO_ID


class Logs:
    """A cache of the logs and topic ids of one server's store."""

    def __init__(self, node: Node) -> None:
        self._store = node.store
        # If the store is open for reading, no log is cached, because another process may delete and create a
        # topic, and a cached log would still read the deleted topic.
        self._keeps = node.store.mode == "rw"
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        self._names: dict[bytes, str] = {}
        self._ids: dict[str, tuple[TopicInfo | None, bytes]] = {}

    def find(self, topic: str, partition: int) -> PartitionLog:
        """Return a partition's log. Raises NotLeaderOrFollowerError, StorageError, StoreClosedError, and
        UnknownTopicOrPartitionError if there is no such partition, or if it is the internal metadata log.
        """
        log = self._logs.get((topic, partition))
        if log is not None and not log.is_gone:
            return log
        self._logs.pop((topic, partition), None)
        if topic == CLUSTER_METADATA:
            raise UnknownTopicOrPartitionError(f"topic {topic!r} is the store's own")
        log = self._store.partition(topic, partition)
        if self._keeps:
            self._logs[topic, partition] = log
        return log

    @property
    def _topics(self) -> Mapping[str, TopicInfo]:
        return self._store.engine.topics

    def id_of(self, topic: str) -> bytes:
        """Return a topic's id, or NO_ID if the topic has no id or does not exist."""
        info, (known, topic_id) = self._topics.get(topic), self._ids.get(topic, _NO_TOPIC)
        if info is not known:
            topic_id = NO_ID if info is None or not info.topic_id else names.topic_id_bytes(info.topic_id)
            self._ids[topic] = info, topic_id
        return topic_id

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with this id, None if there is no such topic."""
        name = self._names.get(topic_id)
        if name is not None and self.id_of(name) == topic_id:
            return name
        self._names.pop(topic_id, None)
        if topic_id == NO_ID:
            return None
        name = next((name for name in self._topics if self.id_of(name) == topic_id), None)
        if name is not None:
            self._names[topic_id] = name
        return name


def check_leader_epoch(log: PartitionLog, known: int) -> None:
    """Compare a client's leader epoch, -1 if the client has none, with the log's leader epoch (KIP-320;
    Kafka: Partition.checkCurrentLeaderEpoch). Raises FencedLeaderEpochError if the client's epoch is lower,
    and UnknownLeaderEpochError if the client's epoch is higher.
    """
    if known < 0:
        return
    epoch = log.leader_epoch
    if known < epoch:
        raise FencedLeaderEpochError(f"{log!r}: leader epoch {known} is over, {epoch} is the current one")
    if known > epoch >= 0:  # `epoch` is -1 if the store is open for reading
        raise UnknownLeaderEpochError(f"{log!r}: leader epoch {known} is unknown, {epoch} is the current one")
