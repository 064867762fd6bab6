"""The records of `__consumer_offsets`: a group's committed offsets and its membership, in Kafka's schemas.

On disk: OffsetCommitKey v1 (v0 is read), OffsetCommitValue v4, which has the topic's id, or v3 for a topic
without an id (v0 to v4 are read; Kafka reads v4 since KIP-915), GroupMetadataKey v2, GroupMetadataValue v3
(v0 to v4 are read); a null value is a tombstone. The first int16 of a key is its type: 0 and 1 for an offset,
2 for a group, larger numbers for the newer group protocols (KIP-848, in `consumer_schema`; KIP-932, in
`share_schema`; KIP-1071).
Threads: any; values and functions without state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from segstore import names
from segstore.coordinator.offsets.consumer_schema import (
    KINDS,
    ConsumerKey,
    GroupRecordType,
    parse_consumer_key,
)
from segstore.coordinator.offsets.share_schema import (
    SHARE_KINDS,
    ShareGroupKey,
    ShareKind,
    parse_share_key,
)
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.protocol.codec import structs
from segstore.protocol.record_codec import decode_key, decode_value, encode_key, encode_value, kind_of

OFFSET_VERSION, GROUP_VERSION = 3, 3  # the versions that Kafka 4.4 writes
HAS_TOPIC_ID = 4
"""The first version of OffsetCommitValue that may have a topic's id."""
GROUP_KEY = 2


class OffsetKey(NamedTuple):
    """The key of a committed offset."""

    group: str
    partition: TopicPartition


class GroupKey(NamedTuple):
    """The key of a classic group's record."""

    group: str


class ForeignKey(NamedTuple):
    """The key of a record of an unknown group protocol; only its group is decoded."""

    group: str
    kind: int


Key = OffsetKey | GroupKey | ConsumerKey | ShareGroupKey | ForeignKey


class OffsetCommitValue(NamedTuple):
    """A committed offset, the time of its commit, and its expiry time (-1: the retention decides); both times
    are ms since the epoch. `topic_id` is the id that the topic had when the offset was committed, "" if it is
    not known.
    """

    offset: OffsetAndMetadata
    timestamp: int
    expires: int = -1
    topic_id: str = ""


@dataclass(frozen=True)
class MemberRecord:
    """A member in the record of a classic group; timeouts are in ms. `subscription` and `assignment` are
    encoded by `consumer_protocol`.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True)
class GroupRecord:
    """The record of a classic group; `state_timestamp_ms` is the time at which the group entered its state
    (-1: not known).
    """

    group_id: str
    protocol_type: str | None
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberRecord, ...] = ()


def offset_key(group: str, partition: TopicPartition) -> bytes:
    """Encode the key of a committed offset. Raises InvalidArgumentError if the group id or the topic's name
    is too long.
    """
    kind = structs("OffsetCommitKey")
    return encode_key(kind(group=group, topic=partition.topic, partition=partition.partition))


def offset_value(commit: OffsetCommitValue) -> bytes:
    """Encode the value of a committed offset. `expires` is not encoded, because new commits have no expiry
    time.
    """
    (offset, metadata, epoch), topic_id = commit.offset, commit.topic_id
    body = structs("OffsetCommitValue")(
        offset=offset, leader_epoch=epoch, metadata=metadata, commit_timestamp=commit.timestamp
    )
    if topic_id:
        body.topic_id = names.topic_id_bytes(topic_id)
    return encode_value(body, HAS_TOPIC_ID if topic_id else OFFSET_VERSION)


def group_key(group: str) -> bytes:
    """Encode the key of a classic group's record. Raises InvalidArgumentError if the group id is too long."""
    return encode_key(structs("GroupMetadataKey")(group=group))


def group_value(record: GroupRecord) -> bytes:
    """Encode the value of a classic group's record. Raises InvalidArgumentError if a string is too long."""
    kind = structs("GroupMetadataValue")
    body = kind(
        protocol_type=record.protocol_type or "",
        generation=record.generation,
        protocol=record.protocol,
        leader=record.leader,
        current_state_timestamp=record.state_timestamp_ms,
        members=[_member(kind.MemberMetadata, each) for each in record.members],
    )
    return encode_value(body, GROUP_VERSION)


def _member(kind: Any, member: MemberRecord) -> Any:
    return kind(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.subscription,
        assignment=member.assignment,
    )


def parse_key(data: bytes) -> Key:
    """Return the key of a record. Raises ValueError if the bytes are no key of this topic."""
    kind = kind_of(data, "a group")
    if kind in (0, 1):
        key = decode_key("OffsetCommitKey", data)
        return OffsetKey(key.group, TopicPartition(key.topic, key.partition))
    if kind in KINDS:
        return parse_consumer_key(GroupRecordType(kind), data)
    if kind in SHARE_KINDS:
        return parse_share_key(ShareKind(kind), data)
    group = decode_key("GroupMetadataKey", data).group  # keys of all kinds begin with the group
    return GroupKey(group) if kind == GROUP_KEY else ForeignKey(group, kind)


def parse_offset(data: bytes) -> OffsetCommitValue:
    """Return a committed offset, decoded from the value of its record. Raises UnsupportedVersionError, and
    ValueError if the bytes can't be decoded.
    """
    body = decode_value("OffsetCommitValue", data)
    offset = OffsetAndMetadata(body.offset, body.metadata, body.leader_epoch)
    return OffsetCommitValue(
        offset, body.commit_timestamp, body.expire_timestamp, names.topic_id_of(body.topic_id)
    )


def parse_group(group: str, data: bytes) -> GroupRecord:
    """Return the record of a classic group, decoded from its value. Raises UnsupportedVersionError, and
    ValueError if the bytes can't be decoded.
    """
    body = decode_value("GroupMetadataValue", data)
    return GroupRecord(
        group,
        body.protocol_type or None,
        body.generation,
        body.protocol,
        body.leader,
        body.current_state_timestamp,
        tuple(map(_parse_member, body.members)),
    )


def _parse_member(row: Any) -> MemberRecord:
    # Version 0 has only one timeout, which is both the session timeout and the rebalance timeout.
    rebalance = row.session_timeout if row.rebalance_timeout == -1 else row.rebalance_timeout
    return MemberRecord(
        row.member_id,
        row.group_instance_id,
        row.client_id,
        row.client_host,
        rebalance,
        row.session_timeout,
        row.subscription,
        row.assignment,
    )
