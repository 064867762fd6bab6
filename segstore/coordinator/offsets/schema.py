"""The records of `__consumer_offsets`: a group's committed offsets and its membership, in Kafka's schemas.

On disk: OffsetCommitKey v1 (v0 is read), OffsetCommitValue v4, which has the topic's id, or v3 for a topic
without one (v0 to v4 are read; Kafka reads v4 since KIP-915), GroupMetadataKey v2, GroupMetadataValue v3 (v0
to v4 are read); a null value is a tombstone. The first int16 of a key says which it is: 0 and 1 an offset, 2
a group; those above are of the newer group protocols (KIP-848, see `consumer_schema`; KIP-932, KIP-1071).
Threads: any; values and functions without state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from segstore import names
from segstore.coordinator.offsets.consumer_schema import KINDS, ConsumerKey, parse_record_key
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.kafka_schema import (
    Reader,
    array,
    begin_key,
    begin_value,
    byte_string,
    int16,
    int32,
    int64,
    string,
    tags,
)

OFFSET_VERSION, GROUP_VERSION = 3, 3  # as Kafka 4.1 writes them
FIRST_FLEXIBLE = LAST_VERSION = 4
TOPIC_ID_TAG = 0  # of OffsetCommitValue
GROUP_KEY = 2


class OffsetKey(NamedTuple):
    """The key of a committed offset."""

    group: str
    partition: TopicPartition


class GroupKey(NamedTuple):
    """The key of a group's membership."""

    group: str


class ForeignKey(NamedTuple):
    """The key of a record of a group protocol that is not known here: only the group is."""

    group: str
    kind: int


Key = OffsetKey | GroupKey | ConsumerKey | ForeignKey


class Commit(NamedTuple):
    """A committed offset, its time, and when it expires by itself (-1: by the retention); ms since the
    epoch. `topic_id`: the id that the topic had then, "" where it is not known.
    """

    offset: OffsetAndMetadata
    timestamp: int
    expires: int = -1
    topic_id: str = ""


@dataclass(frozen=True)
class MemberRecord:
    """A member as it is written; times in ms, `subscription` and `assignment` in the bytes of
    `consumer_protocol`.
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
    """A group as it is written; `state_timestamp_ms` is when it came into its state (-1: not known)."""

    group_id: str
    protocol_type: str | None
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberRecord, ...] = ()


def offset_key(group: str, partition: TopicPartition) -> bytes:
    return int16(1) + string(group) + string(partition.topic) + int32(partition.partition)


def offset_value(commit: Commit) -> bytes:
    """Encode a commit without `expires`, which no new commit has."""
    (offset, metadata, epoch), flexible = commit.offset, bool(commit.topic_id)
    head = int16(FIRST_FLEXIBLE if flexible else OFFSET_VERSION) + int64(offset) + int32(epoch)
    told = head + string(metadata, flexible) + int64(commit.timestamp)
    return told + tags({TOPIC_ID_TAG: names.topic_id_bytes(commit.topic_id)}) if flexible else told


def group_key(group: str) -> bytes:
    return int16(GROUP_KEY) + string(group)


def group_value(record: GroupRecord) -> bytes:
    return b"".join(
        (
            int16(GROUP_VERSION),
            string(record.protocol_type or ""),
            int32(record.generation),
            string(record.protocol),
            string(record.leader),
            int64(record.state_timestamp_ms),
            array(map(_member, record.members)),
        )
    )


def _member(member: MemberRecord) -> bytes:
    return b"".join(
        (
            *map(string, (member.member_id, member.group_instance_id, member.client_id, member.client_host)),
            int32(member.rebalance_timeout_ms),
            int32(member.session_timeout_ms),
            byte_string(member.subscription),
            byte_string(member.assignment),
        )
    )


def parse_key(data: bytes) -> Key:
    """Return the key of a record. Raises ValueError for bytes that are not a key of this topic."""
    read, kind = begin_key(data, "a group")
    group = read.string()
    if kind in (0, 1):
        return OffsetKey(group, TopicPartition(read.string(), read.int32()))
    if kind in KINDS:
        return ConsumerKey(group, parse_record_key(kind, read))
    return GroupKey(group) if kind == GROUP_KEY else ForeignKey(group, kind)


def parse_offset(data: bytes) -> Commit:
    """Return the commit of a record. Raises UnsupportedVersionError; ValueError for bytes that are not such a
    value.
    """
    read, version = begin_value(data, "OffsetCommitValue", LAST_VERSION)
    flexible = version >= FIRST_FLEXIBLE
    offset = read.int64()
    epoch = read.int32() if version >= 3 else -1
    metadata, timestamp = read.string(flexible), read.int64()
    expires = read.int64() if version == 1 else -1
    topic_id = names.topic_id_of(read.tags().get(TOPIC_ID_TAG, b"")) if flexible else ""
    return Commit(OffsetAndMetadata(offset, metadata, epoch), timestamp, expires, topic_id)


def parse_group(group: str, data: bytes) -> GroupRecord:
    """Return the group of a record. Raises UnsupportedVersionError; ValueError for bytes that are not such a
    value.
    """
    read, version = begin_value(data, "GroupMetadataValue", LAST_VERSION)
    flexible = version >= FIRST_FLEXIBLE
    kind, generation = read.string(flexible), read.int32()
    protocol, leader = read.nullable_string(flexible), read.nullable_string(flexible)
    timestamp = read.int64() if version >= 2 else -1
    members = read.array(lambda: _parse_member(read, version), flexible)
    return GroupRecord(group, kind or None, generation, protocol, leader, timestamp, tuple(members))


def _parse_member(read: Reader, version: int) -> MemberRecord:
    flexible = version >= FIRST_FLEXIBLE
    member_id = read.string(flexible)
    instance = read.nullable_string(flexible) if version >= 3 else None
    client_id, host = read.string(flexible), read.string(flexible)
    rebalance = read.int32() if version >= 1 else -1
    session = read.int32()
    subscription, assignment = (read.nullable_bytes(flexible) or b"" for _ in range(2))
    if flexible:
        read.tags()
    # Version 0 had one timeout for session and rebalance.
    rebalance = session if version == 0 else rebalance
    return MemberRecord(member_id, instance, client_id, host, rebalance, session, subscription, assignment)
