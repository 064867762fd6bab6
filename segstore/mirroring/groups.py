"""`MirroredGroups`: copies the committed offsets of the source's groups into this store (Kafka:
MirrorCheckpointConnector). Records have the same offsets here as at the source, so committed offsets are not
translated.

On disk: `__consumer_offsets`, which `GroupOffsets` writes. Threads: one.
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
from segstore.protocol.error_codes import broker_error
from segstore.replica_fetcher.followed_log import FollowedLog, Key
from segstore.storage.store.store import Store
from segstore.wire.cluster import Cluster

log = Logger("segstore")


class MirroredGroups:
    """The mirroring of committed offsets. An offset is committed here only after the log here has reached the
    offset. If the offset were committed earlier, the position of a consumer of the group would be out of
    range. If this client may not read a group, one warning is logged for the group.
    """

    def __init__(self, store: Store, cluster: Cluster) -> None:
        self._store, self._cluster = store, cluster
        self._warned: set[str] = set()

    def sync(self, logs: Mapping[Key, FollowedLog]) -> int:
        """Commit the offsets that have changed at the source, and return how many these are. Raises
        StorageError, and the errors of `Cluster.ask`.
        """
        ends = {TopicPartition(k.topic, k.partition): each.replica.high_watermark for k, each in logs.items()}
        return sum(self._sync(group, ends) for group in sorted(set(self._groups())))

    def _groups(self) -> Iterator[str]:
        for answer in self._cluster.ask_each("ListGroups"):
            if answer.error_code:
                raise broker_error(answer.error_code, "ListGroups")
            yield from (each.group_id for each in answer.groups if each.group_id)

    def _sync(self, group: str, ends: Mapping[TopicPartition, int]) -> int:
        try:
            source_offsets = read_offsets(self._cluster, group)
        except BrokerError as error:
            self._warn_once(group, error)
            return 0
        offsets = shared(self._store, GroupOffsets)
        own_offsets = offsets.fetch(group)
        changed = {
            tp: committed
            for tp, committed in source_offsets.items()
            if tp in ends and committed.offset <= ends[tp] and own_offsets.get(tp) != committed
        }
        try:
            offsets.commit(group, changed)
        except OSError:
            raise
        except SegstoreError as error:
            self._warn_once(group, error)
            return 0
        self._warned.discard(group)
        return len(changed)

    def _warn_once(self, group: str, error: SegstoreError) -> None:
        if group not in self._warned:
            self._warned.add(group)
            log.warning("group %r is not mirrored: %s", group, error)


def read_offsets(cluster: Cluster, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets that a group has committed at a cluster. Raises the errors of `ask_coordinator`."""
    kind = structs("OffsetFetchRequest").OffsetFetchRequestGroup
    asked = kind(group_id=group, topics=None)
    answer = cluster.ask_coordinator(group, "OffsetFetch", group_id=group, topics=None, groups=[asked])
    found = answer.groups[0] if answer.groups else answer
    if found.error_code:
        raise broker_error(found.error_code, f"the offsets of group {group!r}")
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
