"""The reading half of `admin.Groups`: which groups there are, their members, and how far each is behind the
logs.

On disk: only reads. Threads: any.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, TypeVar

from segstore import names
from segstore.coordinator.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from segstore.coordinator.group.consumers.assignors import DEFAULT_ASSIGNOR
from segstore.coordinator.group.consumers.group import ConsumerGroup
from segstore.coordinator.group.consumers.topics import Topics
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.offsets.schema import GroupRecord
from segstore.coordinator.offsets.topic import ReadOffsets, check_group
from segstore.coordinator.retriable import when_loaded
from segstore.coordinator.shared import existing, shared
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.errors import (
    GroupNotFoundError,
    InvalidArgumentError,
    SegstoreError,
    UnsupportedVersionError,
)
from segstore.storage.store.store import Store

# --- admin structs -----------------------------------------------------------------------------

# The values that `Groups` returns. Threads: any; all are immutable.


@dataclass(frozen=True)
class GroupListing:
    """`state` is Kafka's name, "Unknown" where `error` says why; `protocol_type` is None for a group whose
    offsets were committed without members.
    """

    group_id: str
    state: str
    protocol_type: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class GroupMember:
    """A member and its assigned partitions."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True)
class PartitionState:
    """How far a group is in one partition. `member_id`: the member that reads the partition.

    `start` and `end` are the log's offsets, `lag` is `end` minus the committed offset, as in Kafka. `unread`
    counts without the offsets that retention has removed before they were read. Each is None if it is not
    known, and `error` says why. `pending`: an open transaction is about to commit an offset.
    """

    partition: TopicPartition
    committed: OffsetAndMetadata | None
    start: int | None
    end: int | None
    member_id: str | None = None
    pending: bool = False
    error: str | None = None

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.end is None:
            return None
        return max(self.end - self.committed.offset, 0)

    @property
    def unread(self) -> int | None:
        if self.lag is None or self.start is None or self.end is None:
            return None
        return min(self.lag, self.end - self.start)


@dataclass(frozen=True)
class GroupDescription:
    """A group, its members by id, its partitions in order; `generation` is -1 where it never had members. Of
    a consumer group (KIP-848) `generation` is the group's epoch, and `protocol` its assignor.
    """

    group_id: str
    state: str
    protocol_type: str | None
    protocol: str | None
    generation: int
    members: tuple[GroupMember, ...]
    partitions: tuple[PartitionState, ...]
    error: str | None = None

    @property
    def lag(self) -> int:
        """Return the sum over all partitions whose lag is known."""
        return sum(part.lag or 0 for part in self.partitions)

    @property
    def unread(self) -> int:
        """Return the sum over all partitions for which it is known."""
        return sum(part.unread or 0 for part in self.partitions)


# --- describe ------------------------------------------------------------

UNKNOWN, EMPTY, STABLE = "Unknown", "Empty", "Stable"

F = TypeVar("F", bound=Callable[..., Any])


def unknown_group(group: str, known: Sequence[str]) -> GroupNotFoundError:
    """Return the error for a group that is not there, which names those that are."""
    there = ", ".join(map(repr, known[:20])) or "none"
    return GroupNotFoundError(f"no group {group!r}; there are {there}{' ...' * (len(known) > 20)}")


def patient(method: F) -> F:
    """Have a method of `Looking` called again while the coordinator loads."""

    @wraps(method)
    def call(self: Looking, *args: Any, **options: Any) -> Any:
        ask = partial(method, self, *args, **options)
        return when_loaded(self._store, ask, self._store._context.check_open, None)

    return call  # type: ignore[return-value]


class Looking:
    """The groups of a store that is open "rw" or "r"."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def _source(self) -> GroupOffsets | ReadOffsets:
        self._store._context.check_open()
        return shared(self._store, GroupOffsets) if self._store._keeps else ReadOffsets(self._store)

    def _coordinator(self) -> GroupCoordinator | None:
        """Return the coordinator of this process; where there is none, no group has members here."""
        return existing(self._store, GroupCoordinator) if self._store._keeps else None

    def _known(self, source: GroupOffsets | ReadOffsets) -> list[str]:
        coordinator = self._coordinator()
        return sorted(source.groups() | (coordinator.ids() if coordinator else set()))

    def _check_there(self, source: GroupOffsets | ReadOffsets, group: str) -> None:
        known = self._known(source)
        if check_group(group) not in known:
            raise unknown_group(group, known)

    @patient
    def list(self) -> tuple[GroupListing, ...]:
        """Return all groups, by name. Raises CorruptRecordError, StorageError."""
        source = self._source()
        return tuple(self._listing(source, group) for group in self._known(source))

    def _listing(self, source: GroupOffsets | ReadOffsets, group: str) -> GroupListing:
        consumers = _consumers(source, group)
        if consumers is not None:
            return GroupListing(group, consumers.state.value, PROTOCOL_TYPE)
        record, error = _record(source, group)
        return GroupListing(group, self._state(group, record, error), _type(record), error)

    @patient
    def committed(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that a group has committed. Raises CorruptRecordError, StorageError."""
        return dict(self._source().fetch(group))

    @patient
    def describe(self, group: str) -> GroupDescription:
        """Describe one group. Raises GroupNotFoundError, which names the groups that there are;
        InvalidGroupIdError.
        """
        source = self._source()
        self._check_there(source, group)
        consumers = _consumers(source, group)
        if consumers is not None:
            return self._describe(source, consumers)
        record, error = _record(source, group)
        members = self._members(group, record)
        return GroupDescription(
            group,
            self._state(group, record, error),
            _type(record),
            (record.protocol or None) if record else None,
            record.generation if record else -1,
            members,
            self._partitions(source, group, members),
            error,
        )

    def _describe(self, source: GroupOffsets | ReadOffsets, group: ConsumerGroup) -> GroupDescription:
        known = Topics(self._store.topics())
        found = [
            GroupMember(
                member.member_id,
                member.subscription.instance_id,
                member.subscription.client_id,
                known.partitions(member.current.assigned),
            )
            for member in group.members.values()
        ]
        members = tuple(sorted(found, key=lambda member: member.member_id))
        return GroupDescription(
            group.group_id,
            group.state.value,
            PROTOCOL_TYPE,
            group.assignor(DEFAULT_ASSIGNOR),
            group.epoch,
            members,
            self._partitions(source, group.group_id, members),
        )

    def lag(self, group: str) -> dict[TopicPartition, int]:
        """Return the log end offset minus the committed offset, for each partition where it is known.
        Raises GroupNotFoundError.
        """
        parts = self.describe(group).partitions
        return {part.partition: part.lag for part in parts if part.lag is not None}

    def _state(self, group: str, record: GroupRecord | None, error: str | None) -> str:
        coordinator = self._coordinator()
        if error is not None:
            return UNKNOWN
        if coordinator is not None:
            return str(coordinator.state(group).value)
        return STABLE if self._kept_members(record) else EMPTY

    def _kept_members(self, record: GroupRecord | None) -> bool:
        """Return whether members of the record can still live: they end with the writer's process."""
        if record is None or not record.members or self._store._keeps:
            return False
        context = self._store._context
        return context.files.is_locked(os.path.join(context.root, names.LOCK))

    def _members(self, group: str, record: GroupRecord | None) -> tuple[GroupMember, ...]:
        coordinator = self._coordinator()
        if coordinator is not None:
            found = [
                GroupMember(m.member_id, m.group_instance_id, m.client_id, _given(m.assignment))
                for m in coordinator.members(group)
            ]
        elif record is not None and self._kept_members(record):
            found = [
                GroupMember(m.member_id, m.group_instance_id, m.client_id, _given(m.assignment))
                for m in record.members
            ]
        else:
            found = []
        return tuple(sorted(found, key=lambda member: member.member_id))

    def _partitions(
        self, source: GroupOffsets | ReadOffsets, group: str, members: tuple[GroupMember, ...]
    ) -> tuple[PartitionState, ...]:
        try:
            committed, pending = source.fetch(group), source.pending(group)
        except UnsupportedVersionError:
            return ()  # `error` of the group says so
        owners = {tp: member.member_id for member in members for tp in member.assignment}
        return tuple(
            self._partition(tp, committed.get(tp), owners.get(tp), tp in pending)
            for tp in sorted({*committed, *owners, *pending})
        )

    def _partition(
        self, tp: TopicPartition, committed: OffsetAndMetadata | None, owner: str | None, pending: bool
    ) -> PartitionState:
        try:
            log = self._store.partition(*tp)
            return PartitionState(tp, committed, log.start_offset, log.end_offset, owner, pending)
        except SegstoreError as error:
            return PartitionState(tp, committed, None, None, owner, pending, str(error))


def _record(source: GroupOffsets | ReadOffsets, group: str) -> tuple[GroupRecord | None, str | None]:
    """Return the group's record, or why it can't be read."""
    try:
        return source.group(group), None
    except UnsupportedVersionError as error:
        return None, str(error)


def _consumers(source: GroupOffsets | ReadOffsets, group: str) -> ConsumerGroup | None:
    """Return a consumer group as the log has it; None for any other group."""
    try:
        records = source.consumer(group)
    except UnsupportedVersionError:
        return None
    return ConsumerGroup(group, records) if records else None


def _type(record: GroupRecord | None) -> str | None:
    return (record.protocol_type or None) if record is not None else None


def _given(assignment: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions of an assignment; none where it is in another protocol's bytes."""
    try:
        return tuple(sorted(decode_assignment(assignment)))
    except InvalidArgumentError:
        return ()
