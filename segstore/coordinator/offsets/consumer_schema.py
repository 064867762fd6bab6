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
from typing import NamedTuple

from segstore.kafka_schema import (
    Reader,
    array,
    begin_value,
    int8,
    int16,
    int32,
    int64,
    string,
    tags,
    varint,
)

Assignment = Mapping[bytes, frozenset[int]]
"""Partitions by topic id (16 bytes); a topic without partitions is not in it."""
NOTHING: Assignment = {}
AssignmentEpochs = Mapping[bytes, Mapping[int, int]]
"""The member epoch in which each partition was assigned, by topic id and partition (KIP-1251)."""
NO_EPOCHS: AssignmentEpochs = {}
LAST_VERSION = 0
_HASH_TAG = _CLASSIC_TAG = _EPOCHS_TAG = 0
_PRESENT = 1
"""Stands before a structure that may be null, and is not."""


class Kind(IntEnum):
    """What a record is of: the version of its key."""

    EPOCH = 3
    PARTITION_METADATA = 4
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8
    REGEX = 16


KINDS = frozenset(Kind)
NAMED = frozenset({Kind.MEMBER, Kind.TARGET, Kind.CURRENT, Kind.REGEX})
"""Kinds of which a group has many records, each for a member or a regular expression."""


class RecordKey(NamedTuple):
    """Which record of a group; `name` is a member's id or a regular expression, "" for kinds without."""

    kind: Kind
    name: str = ""


class ConsumerKey(NamedTuple):
    """The key of a consumer group's record."""

    group: str
    record: RecordKey


# --- values ------------------------------------------------------------------------------------


class GroupEpoch(NamedTuple):
    """`metadata_hash` differs where the topics of the group do (KIP-1101)."""

    epoch: int
    metadata_hash: int = 0


class PartitionMetadata(NamedTuple):
    """What Kafka before 4.1 kept in place of the hash: known is only that it is there."""


class ClassicMember(NamedTuple):
    """What else is known of a member that speaks the classic protocol (Kafka: ClassicMemberMetadata): its
    session timeout, and its protocols in the order of its preference, with its subscription as bytes.
    """

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class Subscription(NamedTuple):
    """What a member says of itself. `topic_regex` is None or empty where it has none; `classic` is None but
    for a member of the classic protocol.
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
    """The group epoch for which the targets were worked out."""

    epoch: int


class Target(NamedTuple):
    """The partitions that a member shall have."""

    partitions: Assignment


class MemberState(IntEnum):
    """How far a member is on its way to its target (Kafka: MemberState)."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


class Current(NamedTuple):
    """What a member has now: `assigned`, and `revoking`, which it has to give up first. `previous_epoch` is
    what a member comes with that did not get the last answer. A partition that `since` lacks, as in records
    of before 4.3, counts as assigned in the present epoch.
    """

    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NOTHING
    revoking: Assignment = NOTHING
    since: AssignmentEpochs = NO_EPOCHS

    def assigned_in(self, topic: bytes, number: int) -> int | None:
        """Return the epoch in which a partition was assigned; None for a partition of another member."""
        held = self.assigned.get(topic, _NONE), self.revoking.get(topic, _NONE)
        if not any(number in numbers for numbers in held):
            return None
        return self.since.get(topic, {}).get(number, max(self.epoch, 0))


class Resolved(NamedTuple):
    """The topics that matched a regular expression at a time, in ms since the epoch."""

    topics: frozenset[str]
    version: int
    timestamp: int


Value = GroupEpoch | PartitionMetadata | Subscription | TargetEpoch | Target | Current | Resolved
Change = tuple[RecordKey, Value | None]
"""A record to be written; None stands for a tombstone."""


# --- encode ------------------------------------------------------------------------------------

_NO_TAGS = tags({})
_NONE: frozenset[int] = frozenset()


def consumer_key(group: str, key: RecordKey) -> bytes:
    """Encode a key. Raises InvalidArgumentError for a group, a member or an expression that is too long."""
    name = string(key.name) if key.kind in NAMED else b""
    return int16(key.kind) + string(group) + name


def consumer_value(value: Value) -> bytes:
    """Encode a value. Raises InvalidArgumentError; TypeError for PartitionMetadata, which is only deleted."""
    if isinstance(value, GroupEpoch):
        return _value(int32(value.epoch), {_HASH_TAG: int64(value.metadata_hash)})
    if isinstance(value, Subscription):
        return _subscription(value)
    if isinstance(value, TargetEpoch):
        return _value(int32(value.epoch))
    if isinstance(value, Target):
        return _value(_partitions(value.partitions))
    if isinstance(value, Current):
        epochs = int32(value.epoch) + int32(value.previous_epoch) + int8(value.state)
        return _value(
            epochs + _held_partitions(value, value.assigned) + _held_partitions(value, value.revoking)
        )
    if isinstance(value, Resolved):
        return _value(_strings(value.topics) + int64(value.version) + int64(value.timestamp))
    raise TypeError(f"{value} is never written")


def _value(fields: bytes, tagged: Mapping[int, bytes] | None = None) -> bytes:
    return int16(LAST_VERSION) + fields + (tags(tagged) if tagged else _NO_TAGS)


def _subscription(value: Subscription) -> bytes:
    told = (value.instance_id, value.rack_id, value.client_id, value.client_host)
    fields = (
        *(string(each, True) for each in told),
        _strings(value.topic_names),
        string(value.topic_regex, True),
        int32(value.rebalance_timeout_ms),
        string(value.server_assignor, True),
    )
    tagged = None if value.classic is None else {_CLASSIC_TAG: _classic(value.classic)}
    return _value(b"".join(fields), tagged)


def _classic(value: ClassicMember) -> bytes:
    protocols = (
        string(name, True) + varint(len(metadata) + 1) + metadata + _NO_TAGS
        for name, metadata in value.protocols
    )
    return int8(_PRESENT) + int32(value.session_timeout_ms) + array(protocols, True) + _NO_TAGS


def _strings(texts: frozenset[str]) -> bytes:
    return array((string(text, True) for text in sorted(texts)), True)


def _partitions(assignment: Assignment) -> bytes:
    return array(
        (_topic(topic_id, sorted(numbers)) + _NO_TAGS for topic_id, numbers in assignment.items()), True
    )


def _held_partitions(current: Current, assignment: Assignment) -> bytes:
    return array((_held_topic(current, *each) for each in assignment.items()), True)


def _held_topic(current: Current, topic_id: bytes, numbers: frozenset[int]) -> bytes:
    ordered = sorted(numbers)
    if topic_id not in current.since:
        return _topic(topic_id, ordered) + _NO_TAGS
    epochs = (int32(current.assigned_in(topic_id, number) or 0) for number in ordered)
    return _topic(topic_id, ordered) + tags({_EPOCHS_TAG: array(epochs, True)})


def _topic(topic_id: bytes, numbers: list[int]) -> bytes:
    return topic_id + array(map(int32, numbers), True)


# --- parse -------------------------------------------------------------------------------------


def parse_record_key(kind: int, read: Reader) -> RecordKey:
    """Return which record it is, of the key's version and what stands behind the group in it. Raises
    ValueError for bytes that are no key.
    """
    return RecordKey(Kind(kind), read.string() if kind in NAMED else "")


def parse_consumer_value(kind: Kind, data: bytes) -> Value:
    """Return a record's value. Raises UnsupportedVersionError; ValueError for bytes that are not such a
    value.
    """
    read, _ = begin_value(data, f"a record of kind {kind.name}", LAST_VERSION)
    return _PARSERS[kind](read)


def _parse_epoch(read: Reader) -> GroupEpoch:
    epoch = read.int32()
    held = read.tags().get(_HASH_TAG)
    return GroupEpoch(epoch, 0 if held is None else Reader(held).int64())


def _parse_subscription(read: Reader) -> Subscription:
    instance, rack = read.nullable_string(True), read.nullable_string(True)
    client_id, host = read.string(True), read.string(True)
    names = frozenset(_parse_strings(read))
    regex, timeout, assignor = read.nullable_string(True), read.int32(), read.nullable_string(True)
    held = read.tags().get(_CLASSIC_TAG)
    classic = None if held is None else _parse_classic(Reader(held))
    return Subscription(instance, rack, client_id, host, names, regex, timeout, assignor, classic)


def _parse_classic(read: Reader) -> ClassicMember | None:
    def protocol() -> tuple[str, bytes]:
        name, metadata = read.string(True), read.nullable_bytes(True) or b""
        read.tags()
        return name, metadata

    if read.int8() != _PRESENT:
        return None
    return ClassicMember(read.int32(), tuple(read.array(protocol, True)))


def _parse_current(read: Reader) -> Current:
    epoch, previous, number = read.int32(), read.int32(), read.int8()
    state = MemberState(number) if number in _STATES else MemberState.UNKNOWN
    since: dict[bytes, dict[int, int]] = {}
    assigned, revoking = _parse_partitions(read, since), _parse_partitions(read, since)
    return Current(epoch, previous, state, assigned, revoking, since)


def _parse_resolved(read: Reader) -> Resolved:
    return Resolved(frozenset(_parse_strings(read)), read.int64(), read.int64())


def _parse_strings(read: Reader) -> list[str]:
    return read.array(lambda: read.string(True), True)


def _parse_partitions(read: Reader, since: dict[bytes, dict[int, int]] | None = None) -> Assignment:
    """Return partitions, and add the epochs in which they were assigned to `since`."""

    def topic() -> tuple[bytes, frozenset[int]]:
        topic_id, numbers = read.uuid(), read.array(read.int32, True)
        held = read.tags().get(_EPOCHS_TAG)
        if held is not None and since is not None:
            epochs = Reader(held)
            given = zip(numbers, epochs.array(epochs.int32, True), strict=True)
            since.setdefault(topic_id, {}).update(given)
        return topic_id, frozenset(numbers)

    return {topic_id: numbers for topic_id, numbers in read.array(topic, True) if numbers}


_STATES = frozenset(MemberState)
_PARSERS: Mapping[Kind, Callable[[Reader], Value]] = {
    Kind.EPOCH: _parse_epoch,
    Kind.PARTITION_METADATA: lambda read: PartitionMetadata(),
    Kind.MEMBER: _parse_subscription,
    Kind.TARGET_EPOCH: lambda read: TargetEpoch(read.int32()),
    Kind.TARGET: lambda read: Target(_parse_partitions(read)),
    Kind.CURRENT: _parse_current,
    Kind.REGEX: _parse_resolved,
}
