"""The state of one partition of `__consumer_offsets` in memory: loads it, applies records to it, and finds
expired offsets.

If several records have the same key, the last of them in the log counts, as in compaction, no matter when its
transaction was committed. `pending` has the commits of open transactions, by producer id.
On disk: only reads. Threads: under the lock of the partition, which `cache` owns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from segstore.coordinator.consumer_protocol import PROTOCOL_TYPE, decode_subscription
from segstore.coordinator.loader import UnreadableRecord, load_last, warn
from segstore.coordinator.offsets.consumer_schema import (
    ConsumerKey,
    ConsumerMemberValue,
    GroupRecordType,
    RecordKey,
    Resolved,
    Value,
    parse_consumer_value,
)
from segstore.coordinator.offsets.schema import (
    ForeignKey,
    GroupKey,
    GroupRecord,
    Key,
    OffsetCommitValue,
    parse_group,
    parse_key,
    parse_offset,
)
from segstore.coordinator.offsets.share_schema import (
    ShareGroupKey,
    ShareRecordKey,
    ShareValue,
    parse_share_value,
)
from segstore.coordinator.structs import TopicPartition
from segstore.errors import InvalidArgumentError, UnsupportedVersionError
from segstore.storage.store.last_records import LastRecord
from segstore.storage.store.partition_log import PartitionLog


class StoredCommit(NamedTuple):
    """A committed offset, and the offset of its record in the log (`at`)."""

    commit: OffsetCommitValue
    at: int


class GroupState:
    """A group's offsets and membership: a classic group has a `record`; a consumer group (KIP-848) has
    records in `consumer`, a share group (KIP-932) in `share`. `refused` maps the key of each record of a
    newer version to the error's text; `foreign` maps the key of each record of an unknown group protocol to
    the record's type.
    """

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, StoredCommit] = {}
        self.record: GroupRecord | None = None
        self.consumer: dict[RecordKey, Value] = {}
        self.share: dict[ShareRecordKey, ShareValue] = {}
        self.refused: dict[bytes, str] = {}
        self.foreign: dict[bytes, int] = {}

    @property
    def empty(self) -> bool:
        known = self.offsets or self.record or self.consumer or self.share
        return not (known or self.refused or self.foreign)

    @property
    def has_consumers(self) -> bool:
        """Return whether the group's records include a member of a consumer group (KIP-848)."""
        return any(key.kind is GroupRecordType.MEMBER for key in self.consumer)


_NOTHING = GroupState()


class OffsetsState:
    """The groups of one partition, by id. A group that has neither offsets nor records is left out."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupState] = {}
        self.pending: dict[int, dict[tuple[str, TopicPartition], StoredCommit]] = {}

    def names(self) -> set[str]:
        """Return the ids of all groups, even if a group has only offsets of open transactions."""
        return self.groups.keys() | {name for keys in self.pending.values() for name, _ in keys}

    def usable(self, group: str) -> GroupState:
        """Return the group's state. Raises UnsupportedVersionError if a record of the group has a newer
        version.
        """
        group_state = self.groups.get(group, _NOTHING)
        if group_state.refused:
            raise UnsupportedVersionError(f"group {group!r}: {next(iter(group_state.refused.values()))}")
        return group_state

    def known(self, group: str) -> GroupState:
        """Return the group's state. Raises UnsupportedVersionError if a record of the group has a newer
        version, or is of an unknown group protocol.
        """
        group_state = self.usable(group)
        if group_state.foreign:
            kinds = sorted(set(group_state.foreign.values()))
            raise UnsupportedVersionError(
                f"group {group!r} is of a newer group protocol (record types {kinds}): only its offsets can "
                "be read"
            )
        return group_state

    def pending_of(self, group: str) -> set[TopicPartition]:
        """Return the partitions for which an open transaction has sent offsets of the group."""
        return {tp for keys in list(self.pending.values()) for name, tp in keys if name == group}

    # --- records -----------------------------------------------------------------------------

    def put_offset(self, group: str, partition: TopicPartition, commit: OffsetCommitValue, at: int) -> None:
        """Apply a commit whose record is at offset `at`, unless a later record was applied before."""
        offsets = self.groups.setdefault(group, GroupState()).offsets
        before = offsets.get(partition)
        if before is None or before.at < at:
            offsets[partition] = StoredCommit(commit, at)
            self._overtake(group, partition, at)

    def drop_offset(self, group: str, partition: TopicPartition, at: int) -> None:
        """Apply the tombstone of a committed offset. The tombstone is at offset `at`."""
        group_state = self.groups.get(group)
        if group_state is not None:
            group_state.offsets.pop(partition, None)
            self._forget_empty(group)
        self._overtake(group, partition, at)

    def put_pending(
        self, producer_id: int, group: str, partition: TopicPartition, commit: OffsetCommitValue, at: int
    ) -> None:
        """Apply a commit of an open transaction. The commit's record is at offset `at`."""
        self.pending.setdefault(producer_id, {})[group, partition] = StoredCommit(commit, at)

    def put_group(self, group: str, record: GroupRecord | None) -> None:
        """Apply the record of a classic group; None stands for a tombstone."""
        if record is None and group not in self.groups:
            return
        self.groups.setdefault(group, GroupState()).record = record
        self._forget_empty(group)

    def put_consumer(self, group: str, key: RecordKey, value: Value | None) -> None:
        """Apply a record of a consumer group; None stands for a tombstone."""
        if value is not None:
            self.groups.setdefault(group, GroupState()).consumer[key] = value
        elif group in self.groups:
            self.groups[group].consumer.pop(key, None)
            self._forget_empty(group)

    def put_share(self, group: str, key: ShareRecordKey, value: ShareValue | None) -> None:
        """Apply a record of a share group; None stands for a tombstone."""
        if value is not None:
            self.groups.setdefault(group, GroupState()).share[key] = value
        elif group in self.groups:
            self.groups[group].share.pop(key, None)
            self._forget_empty(group)

    def put_foreign(self, group: str, key: bytes, kind: int) -> None:
        """Apply a record of an unknown group protocol."""
        self.groups.setdefault(group, GroupState()).foreign[key] = kind

    def refuse(self, group: str, key: bytes, reason: str) -> None:
        """Mark a group as unusable because of a record of a newer version."""
        self.groups.setdefault(group, GroupState()).refused[key] = reason

    def end(self, producer_id: int, committed: bool) -> None:
        """Apply the outcome of a producer's transaction to the offsets that the transaction has sent."""
        for (group, partition), stored in self.pending.pop(producer_id, {}).items():
            if committed:
                self.put_offset(group, partition, stored.commit, stored.at)

    def _overtake(self, group: str, partition: TopicPartition, at: int) -> None:
        """Drop pending commits (of open transactions) for this partition if their records are below offset
        `at`: the record at `at` is newer.
        """
        for producer_id, keys in list(self.pending.items()):
            stored = keys.get((group, partition))
            if stored is not None and stored.at < at:
                del keys[group, partition]
                if not keys:
                    del self.pending[producer_id]

    def _forget_empty(self, group: str) -> None:
        if self.groups[group].empty:
            del self.groups[group]


# --- expiry ------------------------------------------------------------------------------------

# `expired` finds committed offsets that nobody uses any more (KIP-211; Kafka: OffsetExpirationConditionImpl,
# ClassicGroup.offsetExpirationCondition).

EmptySince = Callable[[str], "int | None"]
"""Returns the time at which a group's last member left (ms since the epoch, -1: not known), or None if the
group has members.
"""


def expired(
    group_state: GroupState, since: int | None, now_ms: int, retention_ms: int
) -> list[TopicPartition]:
    """Return the partitions whose committed offsets are older than the retention. The age of an offset counts
    from the time at which the group became empty. If the group never had members, or has members that don't
    subscribe to the topic, the age counts from the commit.
    """
    record = group_state.record
    if since is not None:
        base = since if record is not None and record.protocol_type else -1
        return [
            tp for tp, own in group_state.offsets.items() if _over(own.commit, base, now_ms, retention_ms)
        ]
    wanted = consumed(group_state.consumer) if group_state.has_consumers else _subscribed(record)
    if wanted is None:
        return []
    unwanted = {tp: own for tp, own in group_state.offsets.items() if tp.topic not in wanted}
    return [tp for tp, own in unwanted.items() if _over(own.commit, -1, now_ms, retention_ms)]


def _over(commit: OffsetCommitValue, base: int, now_ms: int, retention_ms: int) -> bool:
    if commit.expires >= 0:  # only Kafka before 2.1 wrote an expiry time
        return now_ms >= commit.expires
    return now_ms - (base if base >= 0 else commit.timestamp) >= retention_ms


def consumed(records: Mapping[RecordKey, Value]) -> set[str]:
    """Return the topics that any member of a consumer group subscribes to (ModernGroup:
    isSubscribedToTopic).
    """
    found: set[str] = set()
    for value in records.values():
        if isinstance(value, ConsumerMemberValue):
            found |= value.topic_names
        elif isinstance(value, Resolved):
            found |= value.topics
    return found


def _subscribed(record: GroupRecord | None) -> set[str] | None:
    """Return the topics that any member of a classic group subscribes to; None if these topics are
    not known.
    """
    if record is None or record.protocol_type != PROTOCOL_TYPE or not record.members:
        return None
    try:
        return {topic for m in record.members for topic in decode_subscription(m.subscription).topics}
    except InvalidArgumentError:
        return None


# --- load --------------------------------------------------------------------------------------

# `load` reads a partition of `__consumer_offsets`, which a broker may have written. On disk: only reads.
# Threads: any.


def load(source: PartitionLog) -> OffsetsState:
    """Read the log up to its present end, and return the state. If records can't be decoded, log one warning.
    Raises CorruptRecordError, StorageError.
    """
    state, unreadable = understand(source)
    warn(source, "a group's", unreadable)
    return state


def understand(source: PartitionLog) -> tuple[OffsetsState, list[UnreadableRecord]]:
    """Return (state, each record that is the latest of its key and can't be decoded). Raises
    CorruptRecordError, StorageError.
    """
    state = OffsetsState()
    return state, load_last(source, partial(replay, state), _judge, transactional=True)


def _judge(data: bytes, record: LastRecord, producer_id: int | None = None) -> UnreadableRecord | None:
    return replay(OffsetsState(), data, record, producer_id)


def replay(
    state: OffsetsState, data: bytes, record: LastRecord, producer_id: int | None = None
) -> UnreadableRecord | None:
    """Apply a record; return an UnreadableRecord if the record can't be decoded, else None. `producer_id` is
    None unless the record belongs to an open transaction.
    """
    try:
        key = parse_key(data)
        try:
            _put(state, data, key, record, producer_id)
        except UnsupportedVersionError as error:
            state.refuse(key.group, data, f"its record at offset {record.at} is not understood: {error}")
            return UnreadableRecord(record.at, f"group {key.group!r}: {error}", newer=True)
    except ValueError as error:
        return UnreadableRecord(record.at, str(error))
    return None


def _put(state: OffsetsState, data: bytes, key: Key, record: LastRecord, producer_id: int | None) -> None:
    value, at = record
    if isinstance(key, ConsumerKey):
        parsed = None if value is None else parse_consumer_value(key.record.kind, value)
        state.put_consumer(*key, parsed)
    elif isinstance(key, ShareGroupKey):
        share_value = None if value is None else parse_share_value(key.record.kind, value)
        state.put_share(*key, share_value)
    elif isinstance(key, ForeignKey):
        if value is not None:
            state.put_foreign(key.group, data, key.kind)
    elif isinstance(key, GroupKey):
        state.put_group(key.group, None if value is None else parse_group(key.group, value))
    elif value is None:
        state.drop_offset(*key, at)
    elif producer_id is None:
        state.put_offset(*key, parse_offset(value), at)
    else:
        state.put_pending(producer_id, *key, parse_offset(value), at)
