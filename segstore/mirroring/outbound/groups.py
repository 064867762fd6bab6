"""`SentGroups`: offsets that groups have committed here, committed at the target of a mirror, where
records have the same offsets (Kafka: MirrorCheckpointTask.syncGroupOffset). Nothing is on disk. Threads: one.
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
from segstore.protocol.error_codes import told_error
from segstore.storage.store.store import Store
from segstore.wire.cluster import Cluster

log = Logger("segstore")
_Commit = structs("OffsetCommitRequest")
_NO_GENERATION, _NO_EPOCH = -1, -1


class SentGroups:
    """An offset is committed there once the target's log reaches it, never below what the group has committed
    there, and only while the group has no members there. What is refused is told once.
    """

    def __init__(self, store: Store, cluster: Cluster) -> None:
        self._groups, self._cluster = Groups(store), cluster
        self._told: set[str] = set()

    def sync(self, ends: Mapping[TargetPartition, int]) -> int:
        """Commit what has changed, up to these ends of the target's logs; return how many offsets that were.
        Raises as `Cluster.ask`.
        """
        by_name = {TopicPartition(part.topic, part.partition): (part, end) for part, end in ends.items()}
        return sum(self._sync(listed.group_id, by_name) for listed in self._groups.list())

    def _sync(self, group: str, ends: Mapping[TopicPartition, tuple[TargetPartition, int]]) -> int:
        ours = self._groups.committed(group)
        reached = {tp: at for tp, at in ours.items() if tp in ends and at.offset <= ends[tp][1]}
        if not reached:
            return 0
        try:
            theirs = read_offsets(self._cluster, group)
            changed = {
                ends[tp][0]: at
                for tp, at in reached.items()
                if tp not in theirs or theirs[tp].offset < at.offset
            }
            if changed:
                self._commit(group, changed)
        except BrokerError as error:
            if group not in self._told:
                self._told.add(group)
                log.warning("group %r is not mirrored: %s", group, error)
            return 0
        self._told.discard(group)
        return len(changed)

    def _commit(self, group: str, offsets: Mapping[TargetPartition, OffsetAndMetadata]) -> None:
        topics: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
        for part, at in offsets.items():
            # The leader epoch of this log says nothing of the target's: its epochs are its own.
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
                    raise told_error(each.error_code, f"the offsets of group {group!r} at the target")
