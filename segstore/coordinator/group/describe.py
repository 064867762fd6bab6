"""`Looking`: the methods of `admin.Groups` that only read. They list groups, and describe the members and the
lag of a group.

On disk: only reads. Threads: any.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, TypeVar

from segstore import names
from segstore.coordinator.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from segstore.coordinator.group.consumers.assignors import DEFAULT_ASSIGNOR
from segstore.coordinator.group.consumers.group import ConsumerGroup
from segstore.coordinator.group.consumers.topics import AssignableTopics
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.group.descriptions import (
    CONSUMER,
    SHARE,
    GroupDescription,
    GroupListing,
    GroupMember,
    PartitionState,
)
from segstore.coordinator.group.share.group import ASSIGNOR, ShareGroup
from segstore.coordinator.group.share.initialising import keys_of
from segstore.coordinator.java_hash import partition_among
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.offsets.schema import GroupRecord
from segstore.coordinator.offsets.topic import ReadOffsets, check_group
from segstore.coordinator.retriable import when_loaded
from segstore.coordinator.share.core.values import Durable
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.shared import existing, shared
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.errors import (
    GroupNotFoundError,
    InvalidArgumentError,
    SegstoreError,
    UnsupportedVersionError,
)
from segstore.storage.store.store import Store

UNKNOWN, EMPTY, STABLE = "Unknown", "Empty", "Stable"

F = TypeVar("F", bound=Callable[..., Any])


def unknown_group(group: str, known: Sequence[str]) -> GroupNotFoundError:
    """Return the error for a missing group; its text lists up to 20 known groups."""
    there = ", ".join(map(repr, known[:20])) or "none"
    return GroupNotFoundError(f"no group {group!r}; there are {there}{' ...' * (len(known) > 20)}")


def patient(method: F) -> F:
    """Decorate a method of `Looking`: a call that fails because the coordinator is loading is repeated."""

    @wraps(method)
    def call(self: Looking, *args: Any, **options: Any) -> Any:
        ask = partial(method, self, *args, **options)
        return when_loaded(self._store, ask, self._store.context.check_open, None)

    return call  # type: ignore[return-value]


class Looking:
    """Lists and describes the groups of a store that is open "rw" or "r"."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def _source(self) -> GroupOffsets | ReadOffsets:
        self._store.context.check_open()
        return shared(self._store, GroupOffsets) if self._store.keeps else ReadOffsets(self._store)

    def _coordinator(self) -> GroupCoordinator | None:
        """Return the coordinator of this process, or None if there is none: no member of a group is then in
        this process.
        """
        return existing(self._store, GroupCoordinator) if self._store.keeps else None

    def _known(self, source: GroupOffsets | ReadOffsets) -> list[str]:
        coordinator = self._coordinator()
        return sorted(source.groups() | (coordinator.ids() if coordinator else set()))

    def _check_there(self, source: GroupOffsets | ReadOffsets, group: str) -> None:
        known = self._known(source)
        if check_group(group) not in known:
            raise unknown_group(group, known)

    @patient
    def list(self) -> tuple[GroupListing, ...]:
        """Return all groups, sorted by name. Raises CorruptRecordError, StorageError."""
        source = self._source()
        return tuple(self._listing(source, group) for group in self._known(source))

    def _listing(self, source: GroupOffsets | ReadOffsets, group: str) -> GroupListing:
        consumers = _consumers(source, group)
        if consumers is not None:
            return GroupListing(group, consumers.state.value, PROTOCOL_TYPE, group_type=CONSUMER)
        share = share_group(source, group)
        if share is not None:
            return GroupListing(group, share.state.value, SHARE, group_type=SHARE)
        record, error = _record(source, group)
        return GroupListing(group, self._state(group, record, error), _type(record), error)

    @patient
    def committed(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that a group has committed. Raises CorruptRecordError, StorageError."""
        return dict(self._source().fetch(group))

    @patient
    def describe(self, group: str) -> GroupDescription:
        """Return the description of a group. Raises InvalidGroupIdError, and GroupNotFoundError, whose text
        lists known groups.
        """
        source = self._source()
        self._check_there(source, group)
        consumers = _consumers(source, group)
        if consumers is not None:
            return self._describe(source, consumers)
        share = share_group(source, group)
        if share is not None:
            return self._describe_share(share)
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
        known = AssignableTopics(self._store.topics())
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
            group_type=CONSUMER,
        )

    def _describe_share(self, group: ShareGroup) -> GroupDescription:
        known = AssignableTopics(self._store.topics())
        found = [
            GroupMember(
                member.member_id,
                None,
                member.subscription.client_id,
                known.partitions(member.current.assigned),
            )
            for member in group.members.values()
        ]
        members = tuple(sorted(found, key=lambda member: member.member_id))
        return GroupDescription(
            group.group_id,
            group.state.value,
            SHARE,
            ASSIGNOR,
            group.epoch,
            members,
            self._share_partitions(group),
            group_type=SHARE,
        )

    def _share_partitions(self, group: ShareGroup) -> tuple[PartitionState, ...]:
        keys = keys_of(group.group_id, group.partitions.initialized)
        states = durable_states(self._store, keys)
        by_id = {info.topic_id: name for name, info in self._store.topics().items()}
        found = [
            self._share_partition(TopicPartition(by_id[key.topic_id], key.partition), states.get(key))
            for key in keys
            if key.topic_id in by_id
        ]
        return tuple(sorted(found, key=lambda part: part.partition))

    def _share_partition(self, tp: TopicPartition, state: Durable | None) -> PartitionState:
        """Return a share group's progress in one partition; the start offset of the share partition counts as
        the committed offset.
        """
        known = state is not None and state.start >= 0
        start = OffsetAndMetadata(state.start, leader_epoch=state.leader_epoch) if state and known else None
        part = self._partition(tp, start, None, False)
        return replace(part, complete=state.complete if state and state.complete >= 0 else None)

    def lag(self, group: str) -> dict[TopicPartition, int]:
        """Return the log end offset minus the committed offset for each partition whose lag is known. Raises
        GroupNotFoundError.
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
        """Return whether the record's members may be alive: True if there are any, and if another process has
        the store open for writing.
        """
        if record is None or not record.members or self._store.keeps:
            return False
        context = self._store.context
        return context.files.is_locked(os.path.join(context.root, names.LOCK))

    def _members(self, group: str, record: GroupRecord | None) -> tuple[GroupMember, ...]:
        coordinator = self._coordinator()
        if coordinator is not None:
            found = [
                GroupMember(m.member_id, m.group_instance_id, m.client_id, _assigned(m.assignment))
                for m in coordinator.members(group)
            ]
        elif record is not None and self._kept_members(record):
            found = [
                GroupMember(m.member_id, m.group_instance_id, m.client_id, _assigned(m.assignment))
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
            return ()  # `GroupDescription.error` reports this error
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
    """Return (the group's record, None); (None, None) if the group has no record; (None, text of the error)
    if the record can't be decoded.
    """
    try:
        return source.group(group), None
    except UnsupportedVersionError as error:
        return None, str(error)


def _consumers(source: GroupOffsets | ReadOffsets, group: str) -> ConsumerGroup | None:
    """Return a consumer group from its records in the log, or None if the log has no consumer group of this
    id or can't decode its records.
    """
    try:
        records = source.consumer(group)
    except UnsupportedVersionError:
        return None
    return ConsumerGroup(group, records) if records else None


def share_group(source: GroupOffsets | ReadOffsets, group: str) -> ShareGroup | None:
    """Return a share group from its records in the log, or None if the log has no share group of this id or
    can't decode its records.
    """
    try:
        records = source.share(group)
    except UnsupportedVersionError:
        return None
    return ShareGroup(group, records) if records else None


def durable_states(store: Store, keys: Sequence[ShareKey]) -> dict[ShareKey, Durable]:
    """Return the durable states of these share partitions; a share partition that has no state is left out.
    The store may be open "rw" or "r". Raises CorruptRecordError, StorageError, OffsetNotAvailableError.
    """
    if not keys:
        return {}
    if store.keeps:
        # This module is imported here, because only share groups need it.
        from segstore.coordinator.share.state_log import StateLog

        log = shared(store, StateLog)
        found = {key: log.read(key) for key in keys}
    else:
        found = _read_states(store, keys)
    return {key: state for key, state in found.items() if state is not None}


def _read_states(store: Store, keys: Sequence[ShareKey]) -> dict[ShareKey, Durable | None]:
    from segstore.coordinator.share.state_table import understand
    from segstore.coordinator.share.state_topic import TOPIC

    info = store.topics().get(TOPIC)
    ids = () if info is None else info.partition_ids
    numbers = {key: partition_among(str(key), ids, len(ids)) for key in keys if ids}
    there = set(numbers.values()).intersection(ids)
    tables = {number: understand(store.partition(TOPIC, number))[0] for number in there}
    states = {key: tables[number].find(key) for key, number in numbers.items() if number in tables}
    return {key: None if each is None else each.fold.state for key, each in states.items()}


def _type(record: GroupRecord | None) -> str | None:
    return (record.protocol_type or None) if record is not None else None


def _assigned(assignment: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions of an encoded assignment, sorted; () if the bytes can't be decoded."""
    try:
        return tuple(sorted(decode_assignment(assignment)))
    except InvalidArgumentError:
        return ()
