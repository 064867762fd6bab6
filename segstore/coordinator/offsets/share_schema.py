"""The records of share groups (KIP-932) in `__consumer_offsets`, in Kafka's schemas.

On disk: keys of versions 10 (a member's subscription), 11 (group epoch), 12 (epoch of the target assignment),
13 (a member's target), 14 (a member's current assignment) and 15 (the share partitions that have a durable
state); values of version 0, which are flexible. A null value is a tombstone. (Kafka:
GroupCoordinatorRecordHelpers, and its messages ShareGroup*Key and -Value.)
Threads: any; values and functions without state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from segstore.coordinator.offsets.consumer_schema import (
    NOTHING,
    VALUE_VERSION,
    Assignment,
    GroupEpoch,
    TargetAssignment,
)
from segstore.protocol.codec import structs
from segstore.protocol.record_codec import decode_key, decode_value, encode_key, encode_value


class ShareKind(IntEnum):
    """The type of a share group's record. It is stored as the version of the record's key."""

    MEMBER = 10
    EPOCH = 11
    TARGET_EPOCH = 12
    TARGET = 13
    CURRENT = 14
    PARTITIONS = 15


SHARE_KINDS = frozenset(ShareKind)
_OF_MEMBERS = frozenset({ShareKind.MEMBER, ShareKind.TARGET, ShareKind.CURRENT})
_MESSAGES: Mapping[ShareKind, str] = {
    ShareKind.MEMBER: "ShareGroupMemberMetadata",
    ShareKind.EPOCH: "ShareGroupMetadata",
    ShareKind.TARGET_EPOCH: "ShareGroupTargetAssignmentMetadata",
    ShareKind.TARGET: "ShareGroupTargetAssignmentMember",
    ShareKind.CURRENT: "ShareGroupCurrentMemberAssignment",
    ShareKind.PARTITIONS: "ShareGroupStatePartitionMetadata",
}
"""Kafka's names of the messages, without "Key" and "Value"."""


class ShareRecordKey(NamedTuple):
    """The key of a record within its group; `member_id` is "" for types with one record per group."""

    kind: ShareKind
    member_id: str = ""


class ShareGroupKey(NamedTuple):
    """The key of a share group's record."""

    group: str
    record: ShareRecordKey


# --- values ------------------------------------------------------------------------------------


class ShareSubscription(NamedTuple):
    """The subscription of a share group's member."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()


class ShareTargetEpoch(NamedTuple):
    """The group epoch for which the target assignments were computed, and the time of the computation (ms
    since the epoch; 0 if the group has no members).
    """

    epoch: int
    timestamp: int = 0


class ShareCurrent(NamedTuple):
    """The current assignment of a member. A member that has missed the last answer sends `previous_epoch` in
    its next heartbeat.
    """

    epoch: int = 0
    previous_epoch: int = 0
    assigned: Assignment = NOTHING


class TopicPartitionsInfo(NamedTuple):
    """The name of a topic, and those of its partitions whose state in a share group exists or is being
    created.
    """

    name: str
    partitions: frozenset[int] = frozenset()


TopicsInfo = Mapping[bytes, TopicPartitionsInfo]
"""Topics with their partitions, by topic id (16 bytes)."""
NO_TOPICS: TopicsInfo = {}


class ShareStateTopics(NamedTuple):
    """The partitions whose durable state is being created, exists, or is being deleted; a topic's states are
    deleted together.
    """

    initializing: TopicsInfo = NO_TOPICS
    initialized: TopicsInfo = NO_TOPICS
    deleting: Mapping[bytes, str] = {}  # this dict never changes


ShareValue = (
    ShareSubscription | GroupEpoch | ShareTargetEpoch | TargetAssignment | ShareCurrent | ShareStateTopics
)
ShareChange = tuple[ShareRecordKey, "ShareValue | None"]
"""(key, value) of a record to be written; the value None stands for a tombstone."""


# --- encode ------------------------------------------------------------------------------------


def share_key(group: str, key: ShareRecordKey) -> bytes:
    """Encode a key. Raises InvalidArgumentError if the group id or the member id is too long."""
    body = structs(f"{_MESSAGES[key.kind]}Key")(group_id=group)
    if key.kind in _OF_MEMBERS:
        body.member_id = key.member_id
    return encode_key(body)


def share_value(kind: ShareKind, value: ShareValue) -> bytes:
    """Encode a value. Raises InvalidArgumentError."""
    return encode_value(_body(structs(f"{_MESSAGES[kind]}Value"), value), VALUE_VERSION)


def _body(kind: Any, value: ShareValue) -> Any:
    if isinstance(value, ShareSubscription):
        return kind(
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=sorted(value.topic_names),
        )
    if isinstance(value, GroupEpoch):
        return kind(epoch=value.epoch, metadata_hash=value.metadata_hash)
    if isinstance(value, ShareTargetEpoch):
        return kind(assignment_epoch=value.epoch, assignment_timestamp=value.timestamp)
    if isinstance(value, TargetAssignment):
        return kind(topic_partitions=_partitions(kind.TopicPartition, value.partitions))
    if isinstance(value, ShareCurrent):
        return kind(
            member_epoch=value.epoch,
            previous_member_epoch=value.previous_epoch,
            state=0,
            assigned_partitions=_partitions(kind.TopicPartitions, value.assigned),
        )
    return kind(
        initializing_topics=_topics(kind.TopicPartitionsInfo, value.initializing),
        initialized_topics=_topics(kind.TopicPartitionsInfo, value.initialized),
        deleting_topics=[kind.TopicInfo(topic_id=at, topic_name=name) for at, name in value.deleting.items()],
    )


def _partitions(kind: Any, assignment: Assignment) -> list[Any]:
    return [kind(topic_id=topic_id, partitions=sorted(numbers)) for topic_id, numbers in assignment.items()]


def _topics(kind: Any, topics: TopicsInfo) -> list[Any]:
    return [
        kind(topic_id=topic_id, topic_name=name, partitions=sorted(partitions))
        for topic_id, (name, partitions) in topics.items()
    ]


# --- parse -------------------------------------------------------------------------------------


def parse_share_key(kind: ShareKind, data: bytes) -> ShareGroupKey:
    """Return the key of a record of this type. Raises ValueError if the bytes are not a key."""
    key = decode_key(f"{_MESSAGES[kind]}Key", data)
    return ShareGroupKey(key.group_id, ShareRecordKey(kind, key.member_id if kind in _OF_MEMBERS else ""))


def parse_share_value(kind: ShareKind, data: bytes) -> ShareValue:
    """Return the value of a record of this type. Raises UnsupportedVersionError, and ValueError if the bytes
    are not a value.
    """
    return _PARSERS[kind](decode_value(f"{_MESSAGES[kind]}Value", data))


def _parse_partitions(rows: Iterable[Any]) -> Assignment:
    return {row.topic_id: frozenset(row.partitions) for row in rows if row.partitions}


def _parse_topics(rows: Iterable[Any]) -> TopicsInfo:
    return {row.topic_id: TopicPartitionsInfo(row.topic_name, frozenset(row.partitions)) for row in rows}


def _parse_member(body: Any) -> ShareSubscription:
    topics = frozenset(body.subscribed_topic_names)
    return ShareSubscription(body.rack_id, body.client_id, body.client_host, topics)


def _parse_state(body: Any) -> ShareStateTopics:
    return ShareStateTopics(
        _parse_topics(body.initializing_topics),
        _parse_topics(body.initialized_topics),
        {row.topic_id: row.topic_name for row in body.deleting_topics},
    )


_PARSERS: Mapping[ShareKind, Callable[[Any], ShareValue]] = {
    ShareKind.MEMBER: _parse_member,
    ShareKind.EPOCH: lambda body: GroupEpoch(body.epoch, body.metadata_hash),
    ShareKind.TARGET_EPOCH: lambda body: ShareTargetEpoch(body.assignment_epoch, body.assignment_timestamp),
    ShareKind.TARGET: lambda body: TargetAssignment(_parse_partitions(body.topic_partitions)),
    ShareKind.CURRENT: lambda body: ShareCurrent(
        body.member_epoch, body.previous_member_epoch, _parse_partitions(body.assigned_partitions)
    ),
    ShareKind.PARTITIONS: _parse_state,
}
