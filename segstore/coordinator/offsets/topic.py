"""The topic `__consumer_offsets`: made when the first offset is committed, with Kafka's settings.

On disk: the topic, compacted; a broker's becomes one of ours when it is first written to. A group's records
lie in the partition that Java's hash of its id names (Kafka: GroupMetadataManager.partitionFor).
Threads: any; the store says at each call what is there.
"""

from __future__ import annotations

from collections.abc import Mapping

from segstore.coordinator.java_hash import partition_of
from segstore.coordinator.offsets.schema import Commit
from segstore.coordinator.offsets.state import Held
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError
from segstore.storage.meta.topic_info import TopicInfo
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

TOPIC = "__consumer_offsets"


class OffsetsTopic:
    """Of one open store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def info(self) -> TopicInfo | None:
        """None where nothing was ever committed."""
        return self._store._side.topics.get(TOPIC)

    @property
    def ids(self) -> tuple[int, ...]:
        """The partitions that are there."""
        info = self.info
        return () if info is None else info.partition_ids

    def partition_for(self, group: str) -> int:
        """Where the group's records lie, or will.

        Of a copy that has some partitions only, the number of all of them is taken to be the setting's.
        """
        ids = self.ids
        if ids and ids == tuple(range(len(ids))):
            return partition_of(group, len(ids))
        configured = self._store._writer().config.offsets_topic_num_partitions
        return partition_of(group, max(configured, max(ids, default=0) + 1))

    def log(self, partition: int) -> PartitionLog | None:
        """To read; None where it is not there."""
        return self._store.partition(TOPIC, partition) if partition in self.ids else None

    def writable(self, group: str) -> PartitionLog:
        """The group's log, to write; the topic is made if it is not there.

        UnknownTopicOrPartitionError where a copy does not have that partition; StorageError.
        """
        info = self.info
        if info is None:
            self._make()
        elif not info.ours:
            self._store._alter_topic(TOPIC, self._settings())
        return self._store.partition(TOPIC, self.partition_for(group))

    def _make(self) -> None:
        count = self._store._writer().config.offsets_topic_num_partitions
        try:
            self._store._create_topic(TOPIC, count, self._settings())
        except TopicAlreadyExistsError:
            return  # by another thread, a moment ago

    def _settings(self) -> dict[str, str | int]:
        config = self._store._writer().config
        return {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": config.offsets_topic_segment_bytes,
        }

    def topic_id(self, topic: str) -> str:
        """Of the topic that has the name now; "" where there is none, or it has no id."""
        info = self._store._side.topics.get(topic)
        return "" if info is None else info.topic_id

    def held(self, offsets: Mapping[TopicPartition, Held]) -> dict[TopicPartition, OffsetAndMetadata]:
        """What was committed for the topics that are there now, and not for others that had their names, of
        which no tombstone may be there: their deletion was cut short.
        """
        return {tp: own.commit.offset for tp, own in offsets.items() if self._is_of(tp.topic, own.commit)}

    def _is_of(self, topic: str, commit: Commit) -> bool:
        """Where either id is not told, as of a topic that can't be read now, nothing speaks against it."""
        info = self._store._side.topics.get(topic)
        return not commit.topic_id or (info is not None and info.topic_id in ("", commit.topic_id))

    def check_topic(self, topic: str, partition: int) -> None:
        """UnknownTopicOrPartitionError, which says what is there."""
        info = self._store._side.topics.get(topic)
        if info is None or partition not in info.partition_ids:
            there = f"partitions {list(info.partition_ids)}" if info else "no such topic"
            raise UnknownTopicOrPartitionError(f"{topic}-{partition} is not there: {there}")
