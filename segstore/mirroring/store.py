"""`MirrorStore`: the store of a running mirror. Applications may read it.

On disk: the store writes records of its own only to `__consumer_offsets`; all other topics are copies.
Threads: any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from segstore.replica_fetcher.store import FollowingStore
from segstore.storage.context import os_errors
from segstore.storage.log.partition import Partition
from segstore.storage.log.read_only_partition import ReadOnlyPartition
from segstore.storage.meta.topic_info import INTERNAL, TopicInfo
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.writer import StoreWriter

if TYPE_CHECKING:
    from segstore.storage.log.replica import Replica


class MirrorStore(FollowingStore):
    """The store of a mirror. Consumers may commit offsets in it."""

    def _create_topic(self, name: str, partitions: int, config: Mapping[str, Any]) -> TopicInfo:
        if name not in INTERNAL:
            raise self._refusal("create_topic()")
        return super()._create_topic(name, partitions, config)

    def _make_log(self, topic: str, partition: int, source: Partition | ReadOnlyPartition) -> PartitionLog:
        if topic in INTERNAL and isinstance(source, Partition) and source.acks is None:
            assert isinstance(self.engine, StoreWriter)
            with os_errors():
                source.acks = _OwnLeader(self.engine.partitions.replica(topic, partition))
        return super()._make_log(topic, partition, source)


class _OwnLeader:
    """The leader of a partition of an internal topic. The partition has no followers, so appends are
    committed at once.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        replica.lead(replica.epoch_cache.current + 1)
        replica.set_high_watermark(replica.log_end_offset)

    def check(self, acks: int) -> None:
        """Do nothing: an append may have any `acks`."""

    def wait(self, end_offset: int, acks: int, timeout_ms: float) -> None:
        """Move the high watermark to the log end offset."""
        self._replica.set_high_watermark(self._replica.log_end_offset)

    def shown(self) -> None:
        """Do nothing, because there are no other replicas."""

    def failed(self, error: Exception) -> None:
        """Do nothing, because the append raises the error."""
