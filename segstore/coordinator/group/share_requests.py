"""`ShareRequests`: the requests of members and administrators to share groups (KIP-932; Kafka:
GroupCoordinatorService).

On disk: records of `__consumer_offsets`, and states through `StateLog`. Threads: any; each group has a lock.
No method waits for a member.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TypeVar

from segstore.coordinator.group.classic.member import MonotonicMs
from segstore.coordinator.group.group_table import GroupTable
from segstore.coordinator.group.held import GroupEntry
from segstore.coordinator.group.share.group import ShareGroupInfo
from segstore.coordinator.group.share.initialising import DurableStates
from segstore.coordinator.group.share.keeper import Fence
from segstore.coordinator.group.share.member import JOIN_EPOCH, ShareBeaten, ShareHeartbeat
from segstore.coordinator.group.share.membership import ShareMembership
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.offsets.topic import check_group
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.structs import TopicPartition
from segstore.errors import (
    GroupNotFoundError,
    InvalidRequestError,
    NonEmptyGroupError,
    SegstoreError,
)

T = TypeVar("T")


class ShareRequests:
    """The part of `GroupCoordinator` that handles share groups."""

    def __init__(self, groups: GroupTable, offsets: GroupOffsets, clock: MonotonicMs) -> None:
        self._groups, self._offsets, self._clock = groups, offsets, clock

    def share_heartbeat(self, group_id: str, request: ShareHeartbeat) -> ShareBeaten:
        """Handle a heartbeat of a share group's member, and return the member's epoch and assignment.
        Partitions that are new to the group get a durable state before a member gets them. Raises
        InvalidRequestError, UnknownMemberIdError, FencedMemberEpochError, GroupMaxSizeReachedError,
        StorageError, OffsetNotAvailableError. Raises GroupNotFoundError for a group of another type, or if
        there is no group and the member does not join. After StorageError or OffsetNotAvailableError the
        request may be repeated.
        """
        if not isinstance(group_id, str) or not group_id.strip():
            raise InvalidRequestError("group_id must not be empty")
        check_group(group_id)
        request.check()

        def beat(share: ShareMembership) -> ShareBeaten:
            return share.heartbeat(request, self._clock())

        def ask(entry: GroupEntry) -> ShareBeaten:
            if entry.share is None and request.epoch != JOIN_EPOCH:
                raise GroupNotFoundError(f"there is no share group {group_id!r}")
            return self._groups.as_share(entry, beat)

        return self._groups.ask_held(group_id, ask, make=request.epoch == JOIN_EPOCH)

    def describe_share(self, group_id: str) -> ShareGroupInfo | None:
        """Return a share group with its members, or None if there is no such group."""
        entry = self._groups.find(group_id)
        if entry is None:
            return None
        with entry.lock:
            return None if entry.share is None else entry.share.info()

    def raise_share_epoch(self, group_id: str, least: int) -> None:
        """Raise a share group's epoch to at least `least`. Called before the state of a partition gets
        `least` as its state epoch. Raises GroupNotFoundError, StorageError.
        """
        self._ask_share(group_id, lambda share: share.raise_epoch(least))

    def share_partitions(self, group_id: str) -> list[ShareKey]:
        """Return the share partitions of a group that have a durable state, sorted by number within each
        topic; an empty list if there is no such group.
        """
        entry = self._groups.find(group_id)
        if entry is None:
            return []
        with entry.lock:
            return [] if entry.share is None else entry.share.initialised()

    def alter_share_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, SegstoreError | None]:
        """Set the start offsets of a share group that has no members; if the group is missing, create it.
        Return one error or None for each partition. Raises StorageError, NonEmptyGroupError, and
        GroupNotFoundError for a group of another type.
        """
        check_group(group_id)

        def alter(share: ShareMembership) -> dict[TopicPartition, SegstoreError | None]:
            _check_empty(share)
            return share.alter(offsets)

        return self._groups.ask_held(group_id, lambda entry: self._groups.as_share(entry, alter))

    def delete_share_offsets(self, group_id: str, topics: Collection[str]) -> dict[str, SegstoreError | None]:
        """Delete the states of whole topics from a share group that has no members. Return one error or None
        for each topic. Raises NonEmptyGroupError, GroupNotFoundError, StorageError.
        """

        def delete(share: ShareMembership) -> dict[str, SegstoreError | None]:
            _check_empty(share)
            return share.delete_offsets(topics)

        return self._ask_share(group_id, delete)

    def delete_share_group(self, group_id: str) -> None:
        """Delete a share group that has no members, and delete all its states. Raises NonEmptyGroupError,
        GroupNotFoundError, StorageError.
        """

        def end(entry: GroupEntry) -> None:
            share = _share_of(entry, group_id)
            _check_empty(share)
            share.end()
            self._groups.drop(entry)

        self._groups.ask_held(group_id, end, make=False)

    def forget_share_topics(self) -> None:
        """Delete the states that share groups have for deleted topics. Raises StorageError,
        OffsetNotAvailableError; if a group's states could not be deleted, the next heartbeat of the group
        deletes them.
        """
        for group_id in self._offsets.share_groups():
            with suppress(GroupNotFoundError):  # the group was deleted after the list was read
                self._ask_share(group_id, lambda share: share.forget_deleted(self._groups.topics()))

    def set_share_states(self, states: Callable[[], DurableStates]) -> None:
        """Set the function that returns the durable states of share partitions."""
        self._groups.shares.states = states

    def set_share_fence(self, fence: Fence) -> None:
        """Set the function that is called with the share partitions whose states were deleted or replaced:
        the copies of these states in memory are out of date. The function runs under the group's lock, and
        must not call a group.
        """
        self._groups.shares.fence = fence

    def _ask_share(self, group_id: str, ask: Callable[[ShareMembership], T]) -> T:
        return self._groups.ask_held(group_id, lambda entry: ask(_share_of(entry, group_id)), make=False)


def _share_of(entry: GroupEntry, group_id: str) -> ShareMembership:
    """Return the share group of an entry. Raises GroupNotFoundError."""
    if entry.share is None:
        raise GroupNotFoundError(f"there is no share group {group_id!r}")
    return entry.share


def _check_empty(share: ShareMembership) -> None:
    if share.group.members:
        raise NonEmptyGroupError(f"share group {share.group.group_id!r} has members: stop them first")
