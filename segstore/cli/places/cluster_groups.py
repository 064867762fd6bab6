"""`ClusterGroups`: the consumer groups of a cluster, described by the types of `coordinator.group.admin`.

Kafka's protocol has neither the generation of a group nor the offsets that open transactions will commit. The
metadata text of committed offsets is not read, because confluent-kafka 2.16 reads beyond the end of this
text.

Nothing is on disk. Threads: one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from segstore.cli.places.client import ClusterClients
from segstore.cli.places.cluster_offsets import ClusterLog, ClusterOffsets
from segstore.coordinator.group.admin import Moved, Reset, chosen_partitions, moves
from segstore.coordinator.group.describe import unknown_group
from segstore.coordinator.group.descriptions import (
    CLASSIC,
    CONSUMER,
    GroupDescription,
    GroupListing,
    GroupMember,
    PartitionState,
)
from segstore.coordinator.structs import UNKNOWN_EPOCH, OffsetAndMetadata, TopicPartition
from segstore.errors import NonEmptyGroupError
from segstore.storage.meta.topic_info import TopicInfo

_EMPTY, _DEAD = "Empty", "Dead"
_STATES = {
    "PREPARING_REBALANCING": "PreparingRebalance",
    "COMPLETING_REBALANCING": "CompletingRebalance",
    "STABLE": "Stable",
    "DEAD": _DEAD,
    "EMPTY": _EMPTY,
}
_NO_GENERATION = -1
NO_SINGLE_OFFSETS = (
    "librdkafka's client for Python can't delete single offsets: use Kafka's kafka-consumer-groups.sh"
    " --delete-offsets, or --store while nobody serves the store"
)


class ClusterGroups:
    """The groups of a cluster: implements `PlaceGroups` of `segstore.cli.places.place`. Raises
    ClusterError.
    """

    def __init__(self, client: ClusterClients, topics: Mapping[str, TopicInfo]) -> None:
        self._client, self._topics = client, topics

    def list(self) -> tuple[GroupListing, ...]:
        found = self._client.result(self._client.admin.list_consumer_groups())
        if found.errors:
            raise self._client.error(found.errors[0])
        listed = sorted(found.valid, key=lambda each: str(each.group_id))
        return tuple(
            GroupListing(each.group_id, _state(each.state), group_type=_type(each)) for each in listed
        )

    def _check_there(self, group: str) -> None:
        known = [listing.group_id for listing in self.list()]
        if group not in known:
            raise unknown_group(group, known)

    def describe(self, group: str) -> GroupDescription:
        """Describe a group. Raises GroupNotFoundError, whose message lists the existing groups."""
        self._check_there(group)
        described = self._described(group)
        members = tuple(sorted((_member(each) for each in described.members), key=lambda m: m.member_id))
        return GroupDescription(
            group,
            _state(described.state),
            None if described.is_simple_consumer_group else "consumer",
            described.partition_assignor or None,
            _NO_GENERATION,
            members,
            self._partitions(group, members),
            group_type=_type(described),
        )

    def _described(self, group: str) -> Any:
        (future,) = self._client.admin.describe_consumer_groups([group]).values()
        return self._client.result(future, group)

    def _partitions(self, group: str, members: Sequence[GroupMember]) -> tuple[PartitionState, ...]:
        committed = self._committed(group)
        owners = {tp: member.member_id for member in members for tp in member.assignment}
        keys, offsets = sorted({*committed, *owners}), ClusterOffsets(self._client)
        starts, ends = offsets.starts(keys), offsets.ends(keys)
        return tuple(_partition(tp, committed.get(tp), starts[tp], ends[tp], owners.get(tp)) for tp in keys)

    def _committed(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        asked = [self._client.kafka.ConsumerGroupTopicPartitions(group)]
        (future,) = self._client.admin.list_consumer_group_offsets(asked).values()
        return {
            TopicPartition(each.topic, each.partition): _offset(each)
            for each in self._client.result(future, group).topic_partitions
            if each.offset >= 0
        }

    # --- changes --------------------------------------------------------------------------

    def reset(
        self, group: str, to: Reset, partitions: Sequence[TopicPartition | str] | None, dry_run: bool = False
    ) -> tuple[Moved, ...]:
        """Set the group's committed offsets, as `Groups.reset` of a store does. Raises NonEmptyGroupError,
        and GroupNotFoundError if `partitions` is None.
        """
        if partitions is None:
            self._check_there(group)
        committed = self._committed(group)
        chosen = sorted(committed) if partitions is None else chosen_partitions(self._topics, partitions)
        now = time.time_ns() // 1_000_000
        moved = moves(chosen, to, committed, lambda tp: ClusterLog(self._client, tp), now)
        if not dry_run:
            self._check_empty(group)
            self._commit(group, moved)
        return moved

    def _check_empty(self, group: str) -> None:
        described = self._described(group)
        if described.members:
            count = len(described.members)
            raise NonEmptyGroupError(
                f"group {group!r} has {count} member{'s' * (count != 1)}: end them first"
            )

    def _commit(self, group: str, moved: Sequence[Moved]) -> None:
        kafka = self._client.kafka
        parts = [kafka.TopicPartition(*move.partition, move.after) for move in moved]
        asked = [kafka.ConsumerGroupTopicPartitions(group, parts)]
        (future,) = self._client.admin.alter_consumer_group_offsets(asked).values()
        for each in self._client.result(future, group).topic_partitions:
            if each.error is not None:
                raise self._client.error(group, f"{each.topic}-{each.partition}", each.error)

    def delete(self, group: str) -> None:
        self._check_empty(group)
        (future,) = self._client.admin.delete_consumer_groups([group]).values()
        self._client.result(future, group)

    def delete_offsets(self, group: str, partitions: Sequence[TopicPartition | str]) -> set[TopicPartition]:
        """Raises ClusterError, because librdkafka's client can't delete the offsets of single partitions."""
        raise self._client.error(group, NO_SINGLE_OFFSETS)


def _state(state: Any) -> str:
    return _STATES.get(state.name, str(state.name).capitalize())


def _type(described: Any) -> str:
    """Return the type of a group. Versions of librdkafka before 2.6 do not report the type: a group is then
    taken to be classic.
    """
    name = getattr(getattr(described, "type", None), "name", "")
    return CONSUMER if name == "CONSUMER" else CLASSIC


def _member(described: Any) -> GroupMember:
    given = described.assignment.topic_partitions if described.assignment is not None else ()
    assigned = tuple(sorted(TopicPartition(each.topic, each.partition) for each in given))
    return GroupMember(described.member_id, described.group_instance_id, described.client_id, assigned)


def _offset(committed: Any) -> OffsetAndMetadata:
    epoch = UNKNOWN_EPOCH if committed.leader_epoch is None else committed.leader_epoch
    return OffsetAndMetadata(committed.offset, leader_epoch=epoch)


def _partition(
    tp: TopicPartition,
    committed: OffsetAndMetadata | None,
    start: int | str,
    end: int | str,
    owner: str | None,
) -> PartitionState:
    """Return the progress of a group in a partition. `start` and `end` are the log's offsets. If an offset
    could not be read, it is replaced by the error's text.
    """
    if isinstance(start, str) or isinstance(end, str):
        why = start if isinstance(start, str) else str(end)
        return PartitionState(tp, committed, None, None, owner, error=why)
    return PartitionState(tp, committed, start, end, owner)
