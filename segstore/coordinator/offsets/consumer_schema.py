"""The records of consumer groups (KIP-848) in `__consumer_offsets`, in Kafka's schemas.

On disk: keys of versions 3 (group epoch), 4 (the topics' metadata, which Kafka wrote before 4.1), 5 (a
member's subscription), 6 (epoch of the target assignment), 7 (a member's target), 8 (a member's current
assignment) and 16 (the topics of a regular expression); values of version 0, which are flexible. A null value
is a tombstone. (Kafka: GroupCoordinatorRecordHelpers, and its messages ConsumerGroup*Key and -Value.)
Threads: any; values and functions without state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from segstore.protocol.codec import structs
from segstore.protocol.record_codec import decode_key, decode_value, encode_key, encode_value

Assignment = Mapping[bytes, frozenset[int]]
"""Partitions by topic id (16 bytes), without topics that have no partitions."""
NOTHING: Assignment = {}
AssignmentEpochs = Mapping[bytes, Mapping[int, int]]
"""The member epoch in which each partition was assigned, by topic id and partition (KIP-1251)."""
NO_EPOCHS: AssignmentEpochs = {}
VALUE_VERSION = 0


class GroupRecordType(IntEnum):
    """The type of a group's record. It is stored as the version of the record's key."""

    EPOCH = 3
    PARTITION_METADATA = 4
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8
    REGEX = 16


KINDS = frozenset(GroupRecordType)
NAMED: Mapping[GroupRecordType, str] = {
    GroupRecordType.MEMBER: "member_id",
    GroupRecordType.TARGET: "member_id",
    GroupRecordType.CURRENT: "member_id",
    GroupRecordType.REGEX: "regular_expression",
}
"""The name field of the key, for record types with one record per member or regular expression."""
_MESSAGES: Mapping[GroupRecordType, str] = {
    GroupRecordType.EPOCH: "ConsumerGroupMetadata",
    GroupRecordType.PARTITION_METADATA: "ConsumerGroupPartitionMetadata",
    GroupRecordType.MEMBER: "ConsumerGroupMemberMetadata",
    GroupRecordType.TARGET_EPOCH: "ConsumerGroupTargetAssignmentMetadata",
    GroupRecordType.TARGET: "ConsumerGroupTargetAssignmentMember",
    GroupRecordType.CURRENT: "ConsumerGroupCurrentMemberAssignment",
    GroupRecordType.REGEX: "ConsumerGroupRegularExpression",
}
"""Kafka's names of the messages, without "Key" and "Value"."""


class RecordKey(NamedTuple):
    """The key of a record within its group; `name` is a member id or a regular expression, or "" for types
    with one record per group.
    """

    kind: GroupRecordType
    name: str = ""


class ConsumerKey(NamedTuple):
    """The key of a consumer group's record."""

    group: str
    record: RecordKey


# --- values ------------------------------------------------------------------------------------


class GroupEpoch(NamedTuple):
    """The epoch of a group. `metadata_hash` is a hash of the group's subscribed topics (KIP-1101)."""

    epoch: int
    metadata_hash: int = 0


class PartitionMetadata(NamedTuple):
    """The metadata of the subscribed topics, which Kafka before 4.1 wrote in place of `metadata_hash`. Its
    fields are not decoded.
    """


class ClassicMember(NamedTuple):
    """The fields of a member's subscription that only a member of the classic protocol has (Kafka:
    ClassicMemberMetadata): its session timeout, and its protocols in order of preference, each with the
    encoded subscription.
    """

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerMemberValue(NamedTuple):
    """The subscription of a member. `topic_regex` is None or empty if the member has no regular expression;
    `classic` is None unless the member speaks the classic protocol.
    """

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    topic_regex: str | None = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMember | None = None


class TargetEpoch(NamedTuple):
    """The group epoch for which the target assignments were computed."""

    epoch: int


class TargetAssignment(NamedTuple):
    """The target assignment of a member."""

    partitions: Assignment


class MemberState(IntEnum):
    """The progress of a member from its current to its target assignment (Kafka: MemberState)."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


class Current(NamedTuple):
    """The current assignment of a member: the partitions `assigned`, and the partitions `revoking`, which the
    member owns until it has revoked them. A member that has missed the last answer sends `previous_epoch` in
    its next heartbeat. `since` has the epoch in which each partition was assigned; a partition without an
    entry, as in records from before Kafka 4.3, counts as assigned in `epoch`.
    """

    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NOTHING
    revoking: Assignment = NOTHING
    since: AssignmentEpochs = NO_EPOCHS

    def assigned_in(self, topic: bytes, number: int) -> int | None:
        """Return the epoch in which a partition was assigned; None if the member does not own the
        partition.
        """
        held = self.assigned.get(topic, _NONE), self.revoking.get(topic, _NONE)
        if not any(number in numbers for numbers in held):
            return None
        return self.since.get(topic, {}).get(number, max(self.epoch, 0))


class Resolved(NamedTuple):
    """The topics that match a regular expression, with the group epoch (`version`) and the time (ms since the
    epoch) at which they were found.
    """

    topics: frozenset[str]
    version: int
    timestamp: int


Value = (
    GroupEpoch | PartitionMetadata | ConsumerMemberValue | TargetEpoch | TargetAssignment | Current | Resolved
)
Change = tuple[RecordKey, Value | None]
"""(key, value) of a record to be written; the value None stands for a tombstone."""


# --- encode ------------------------------------------------------------------------------------

_NONE: frozenset[int] = frozenset()


def consumer_key(group: str, key: RecordKey) -> bytes:
    """Encode a key. Raises InvalidArgumentError if an id or the regular expression is too long."""
    body = structs(f"{_MESSAGES[key.kind]}Key")(group_id=group)
    if key.kind in NAMED:
        setattr(body, NAMED[key.kind], key.name)
    return encode_key(body)


def consumer_value(value: Value) -> bytes:
    """Encode a value. Raises InvalidArgumentError if a string is too long, and TypeError for
    PartitionMetadata, which is never written.
    """
    return encode_value(_body(value), VALUE_VERSION)


def _body(value: Value) -> Any:
    if isinstance(value, GroupEpoch):
        return _kind(GroupRecordType.EPOCH)(epoch=value.epoch, metadata_hash=value.metadata_hash)
    if isinstance(value, ConsumerMemberValue):
        return _subscription(value)
    if isinstance(value, TargetEpoch):
        return _kind(GroupRecordType.TARGET_EPOCH)(assignment_epoch=value.epoch)
    if isinstance(value, TargetAssignment):
        kind = _kind(GroupRecordType.TARGET)
        return kind(topic_partitions=_partitions(kind.TopicPartition, value.partitions))
    if isinstance(value, Current):
        return _current(value)
    if isinstance(value, Resolved):
        topics = sorted(value.topics)
        return _kind(GroupRecordType.REGEX)(topics=topics, version=value.version, timestamp=value.timestamp)
    raise TypeError(f"{value} is never written")


def _kind(kind: GroupRecordType) -> Any:
    return structs(f"{_MESSAGES[kind]}Value")


def _subscription(value: ConsumerMemberValue) -> Any:
    kind = _kind(GroupRecordType.MEMBER)
    return kind(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        subscribed_topic_names=sorted(value.topic_names),
        subscribed_topic_regex=value.topic_regex,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor,
        # If the field were left out, a reader would use the field's default, which is a classic member. So
        # None is written as null, as in Kafka.
        classic_member_metadata=None if value.classic is None else _classic(kind, value.classic),
    )


def _classic(kind: Any, value: ClassicMember) -> Any:
    protocols = [kind.ClassicProtocol(name=name, metadata=metadata) for name, metadata in value.protocols]
    return kind.ClassicMemberMetadata(
        session_timeout_ms=value.session_timeout_ms, supported_protocols=protocols
    )


def _current(value: Current) -> Any:
    kind = _kind(GroupRecordType.CURRENT)
    return kind(
        member_epoch=value.epoch,
        previous_member_epoch=value.previous_epoch,
        state=value.state,
        assigned_partitions=_held_partitions(kind.TopicPartitions, value, value.assigned),
        partitions_pending_revocation=_held_partitions(kind.TopicPartitions, value, value.revoking),
    )


def _held_partitions(kind: Any, current: Current, assignment: Assignment) -> list[Any]:
    return [_held_topic(kind, current, *each) for each in assignment.items()]


def _held_topic(kind: Any, current: Current, topic_id: bytes, numbers: frozenset[int]) -> Any:
    ordered = sorted(numbers)
    known = topic_id in current.since
    epochs = [current.assigned_in(topic_id, number) or 0 for number in ordered] if known else []
    return kind(topic_id=topic_id, partitions=ordered, assignment_epochs=epochs)


def _partitions(kind: Any, assignment: Assignment) -> list[Any]:
    return [kind(topic_id=topic_id, partitions=sorted(held)) for topic_id, held in assignment.items()]


# --- parse -------------------------------------------------------------------------------------


def parse_consumer_key(kind: GroupRecordType, data: bytes) -> ConsumerKey:
    """Return the key of a record of this type. Raises ValueError if the bytes are not a key."""
    key = decode_key(f"{_MESSAGES[kind]}Key", data)
    return ConsumerKey(key.group_id, RecordKey(kind, getattr(key, NAMED[kind]) if kind in NAMED else ""))


def parse_consumer_value(kind: GroupRecordType, data: bytes) -> Value:
    """Return the value of a record of this type. Raises UnsupportedVersionError, and ValueError if the bytes
    are not a value.
    """
    if kind is GroupRecordType.PARTITION_METADATA:
        return PartitionMetadata()
    return _PARSERS[kind](decode_value(f"{_MESSAGES[kind]}Value", data))


def _parse_subscription(body: Any) -> ConsumerMemberValue:
    held = body.classic_member_metadata
    return ConsumerMemberValue(
        body.instance_id,
        body.rack_id,
        body.client_id,
        body.client_host,
        frozenset(body.subscribed_topic_names),
        body.subscribed_topic_regex,
        body.rebalance_timeout_ms,
        body.server_assignor,
        # Older records of KIP-848 members lack `classic_member_metadata`: its default is then decoded.
        None if held in (None, type(body).ClassicMemberMetadata()) else _parse_classic(held),
    )


def _parse_classic(held: Any) -> ClassicMember:
    protocols = tuple((each.name, each.metadata) for each in held.supported_protocols)
    return ClassicMember(held.session_timeout_ms, protocols)


def _parse_current(body: Any) -> Current:
    state = MemberState(body.state) if body.state in _STATES else MemberState.UNKNOWN
    assigned, revoking = body.assigned_partitions, body.partitions_pending_revocation
    held, given_up = _parse_partitions(assigned), _parse_partitions(revoking)
    since = _parse_epochs([*assigned, *revoking])
    return Current(body.member_epoch, body.previous_member_epoch, state, held, given_up, since)


def _parse_partitions(rows: list[Any]) -> Assignment:
    return {row.topic_id: frozenset(row.partitions) for row in rows if row.partitions}


def _parse_epochs(rows: list[Any]) -> AssignmentEpochs:
    since: dict[bytes, dict[int, int]] = {}
    for row in rows:
        if row.assignment_epochs:
            pairs = zip(row.partitions, row.assignment_epochs, strict=True)
            since.setdefault(row.topic_id, {}).update(pairs)
    return since


_STATES = frozenset(MemberState)
_PARSERS: Mapping[GroupRecordType, Callable[[Any], Value]] = {
    GroupRecordType.EPOCH: lambda body: GroupEpoch(body.epoch, body.metadata_hash),
    GroupRecordType.MEMBER: _parse_subscription,
    GroupRecordType.TARGET_EPOCH: lambda body: TargetEpoch(body.assignment_epoch),
    GroupRecordType.TARGET: lambda body: TargetAssignment(_parse_partitions(body.topic_partitions)),
    GroupRecordType.CURRENT: _parse_current,
    GroupRecordType.REGEX: lambda body: Resolved(frozenset(body.topics), body.version, body.timestamp),
}
