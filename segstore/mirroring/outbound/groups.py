"""`SentGroups`: copies the committed offsets of this store's groups to the target cluster of a mirror.
Records have the same offsets there, so committed offsets are not translated (Kafka:
MirrorCheckpointTask.syncGroupOffset). Nothing is on disk. Threads: one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from segstore import names
from segstore.coordinator.group.admin import Groups
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.errors import BrokerError
from segstore.logger import Logger
from segstore.mirroring.groups import read_offsets
from segstore.mirroring.outbound.sent_log import TargetPartition
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import broker_error
from segstore.storage.store.store import Store
from segstore.wire.cluster import Cluster

log = Logger("segstore")
_Commit = structs("OffsetCommitRequest")
_NO_GENERATION, _NO_EPOCH = -1, -1


class SentGroups:
    """The mirroring of committed offsets to a target. An offset is committed at the target only if the
    target's log has reached the offset, and if the offset is above the group's committed offset at the
    target. While the group has members at the target, the target refuses the commit. One warning is logged
    for each refused group.
    """

    def __init__(self, store: Store, cluster: Cluster) -> None:
        self._groups, self._cluster = Groups(store), cluster
        self._warned: set[str] = set()

    def sync(self, ends: Mapping[TargetPartition, int]) -> int:
        """Commit the offsets that have advanced, except for those above the target's log end offset in
        `ends`. Return the number of committed offsets. Raises the errors of `Cluster.ask`.
        """
        by_name = {TopicPartition(part.topic, part.partition): (part, end) for part, end in ends.items()}
        return sum(self._sync(listed.group_id, by_name) for listed in self._groups.list())

    def _sync(self, group: str, ends: Mapping[TopicPartition, tuple[TargetPartition, int]]) -> int:
        own = self._groups.committed(group)
        reached = {tp: at for tp, at in own.items() if tp in ends and at.offset <= ends[tp][1]}
        if not reached:
            return 0
        try:
            known = read_offsets(self._cluster, group)
            changed = {
                ends[tp][0]: at
                for tp, at in reached.items()
                if tp not in known or known[tp].offset < at.offset
            }
            if changed:
                self._commit(group, changed)
        except BrokerError as error:
            if group not in self._warned:
                self._warned.add(group)
                log.warning("group %r is not mirrored: %s", group, error)
            return 0
        self._warned.discard(group)
        return len(changed)

    def _commit(self, group: str, offsets: Mapping[TargetPartition, OffsetAndMetadata]) -> None:
        topics: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
        for part, at in offsets.items():
            # The request has no leader epoch, because the target's logs have other leader epochs.
            topics[part.topic, part.topic_id].append(
                _Commit.OffsetCommitRequestPartition(
                    partition_index=part.partition,
                    committed_offset=at.offset,
                    committed_leader_epoch=_NO_EPOCH,
                    committed_metadata=at.metadata,
                )
            )
        asked = [
            _Commit.OffsetCommitRequestTopic(
                name=name,
                topic_id=names.topic_id_bytes(topic_id) if topic_id else bytes(16),
                partitions=parts,
            )
            for (name, topic_id), parts in topics.items()
        ]
        answer = self._cluster.ask_coordinator(
            group,
            "OffsetCommit",
            group_id=group,
            generation_id_or_member_epoch=_NO_GENERATION,
            member_id="",
            topics=asked,
        )
        for topic in answer.topics:
            for each in topic.partitions:
                if each.error_code:
                    raise broker_error(each.error_code, f"the offsets of group {group!r} at the target")
