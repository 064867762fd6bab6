"""`MirroredGroups`: committed offsets of the source's groups, committed here (Kafka:
MirrorCheckpointConnector; since offsets are equal, none is translated).

On disk: `__consumer_offsets`, through `GroupOffsets`. Threads: one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.errors import BrokerError, SegstoreError
from segstore.logger import Logger
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import told_error
from segstore.replica_fetcher.followed_log import FollowedLog, Key
from segstore.storage.store.store import Store
from segstore.wire.cluster import Cluster

log = Logger("segstore")


class MirroredGroups:
    """An offset is committed here once the log reaches it: until then the group would be out of range. What
    this client may not see is told once.
    """

    def __init__(self, store: Store, cluster: Cluster) -> None:
        self._store, self._cluster = store, cluster
        self._told: set[str] = set()

    def sync(self, logs: Mapping[Key, FollowedLog]) -> int:
        """Commit what has changed; return how many offsets that were. Raises StorageError, and as
        `Cluster.ask`.
        """
        ends = {TopicPartition(k.topic, k.partition): each.replica.high_watermark for k, each in logs.items()}
        return sum(self._sync(group, ends) for group in sorted(set(self._groups())))

    def _groups(self) -> Iterator[str]:
        for answer in self._cluster.ask_each("ListGroups"):
            if answer.error_code:
                raise told_error(answer.error_code, "ListGroups")
            yield from (each.group_id for each in answer.groups if each.group_id)

    def _sync(self, group: str, ends: Mapping[TopicPartition, int]) -> int:
        try:
            theirs = read_offsets(self._cluster, group)
        except BrokerError as error:
            self._tell(group, error)
            return 0
        offsets = shared(self._store, GroupOffsets)
        ours = offsets.fetch(group)
        changed = {
            tp: committed
            for tp, committed in theirs.items()
            if tp in ends and committed.offset <= ends[tp] and ours.get(tp) != committed
        }
        try:
            offsets.commit(group, changed)
        except OSError:
            raise
        except SegstoreError as error:
            self._tell(group, error)
            return 0
        self._told.discard(group)
        return len(changed)

    def _tell(self, group: str, error: SegstoreError) -> None:
        if group not in self._told:
            self._told.add(group)
            log.warning("group %r is not mirrored: %s", group, error)


def read_offsets(cluster: Cluster, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return what a group has committed at a cluster. Raises BrokerError, and as `Cluster.ask`."""
    kind = structs("OffsetFetchRequest").OffsetFetchRequestGroup
    asked = kind(group_id=group, topics=None)
    answer = cluster.ask_coordinator(group, "OffsetFetch", group_id=group, topics=None, groups=[asked])
    found = answer.groups[0] if answer.groups else answer
    if found.error_code:
        raise told_error(found.error_code, f"the offsets of group {group!r}")
    return dict(_offsets(found.topics))


def _offsets(topics: Any) -> Iterator[tuple[TopicPartition, OffsetAndMetadata]]:
    for topic in topics:
        for part in topic.partitions:
            if not part.error_code and part.committed_offset >= 0:
                at = TopicPartition(topic.name, part.partition_index)
                yield (
                    at,
                    OffsetAndMetadata(
                        part.committed_offset, part.metadata or "", part.committed_leader_epoch
                    ),
                )
