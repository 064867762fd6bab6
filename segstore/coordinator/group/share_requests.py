"""`ShareRequests`: the requests of members and administrators to share groups (KIP-932; Kafka:
GroupCoordinatorService).

On disk: records of `__consumer_offsets`, and states through the state log. Threads: any; each group has a
lock. No method waits for a member.
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
    """The part of `GroupCoordinator` for share groups."""

    def __init__(self, groups: GroupTable, offsets: GroupOffsets, clock: MonotonicMs) -> None:
        self._groups, self._offsets, self._clock = groups, offsets, clock

    def share_heartbeat(self, group_id: str, asked: ShareHeartbeat) -> ShareBeaten:
        """Take a request of a share group's member, and answer which partitions the member shall have.
        Partitions that are new to the group get a durable state before. Raises InvalidRequestError,
        GroupNotFoundError for a group of another kind, and if there is none and the member does not join;
        UnknownMemberIdError, FencedMemberEpochError, GroupMaxSizeReachedError; StorageError,
        OffsetNotAvailableError, after which the request may be made again.
        """
        if not isinstance(group_id, str) or not group_id.strip():
            raise InvalidRequestError("group_id must not be empty")
        check_group(group_id)
        asked.check()

        def beat(share: ShareMembership) -> ShareBeaten:
            return share.heartbeat(asked, self._clock())

        def ask(held: GroupEntry) -> ShareBeaten:
            if held.share is None and asked.epoch != JOIN_EPOCH:
                raise GroupNotFoundError(f"there is no share group {group_id!r}")
            return self._groups.as_share(held, beat)

        return self._groups.ask_held(group_id, ask, make=asked.epoch == JOIN_EPOCH)

    def describe_share(self, group_id: str) -> ShareGroupInfo | None:
        """Return a share group with its members; None if there is no such group."""
        held = self._groups.find(group_id)
        if held is None:
            return None
        with held.lock:
            return None if held.share is None else held.share.info()

    def raise_share_epoch(self, group_id: str, least: int) -> None:
        """Have a share group's epoch be `least` at least, before a state of its partitions gets that state
        epoch. Raises GroupNotFoundError; StorageError.
        """
        self._ask_share(group_id, lambda share: share.raise_epoch(least))

    def share_partitions(self, group_id: str) -> list[ShareKey]:
        """Return the share partitions of a group that have a durable state, in order; none if there is no
        such group.
        """
        held = self._groups.find(group_id)
        if held is None:
            return []
        with held.lock:
            return [] if held.share is None else held.share.initialised()

    def alter_share_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, SegstoreError | None]:
        """Set the start offsets of a share group without members, which is made if there is none; return for
        each partition why that could not be done. Raises NonEmptyGroupError, GroupNotFoundError for a group
        of another kind; StorageError.
        """
        check_group(group_id)

        def alter(share: ShareMembership) -> dict[TopicPartition, SegstoreError | None]:
            _check_empty(share)
            return share.alter(offsets)

        return self._groups.ask_held(group_id, lambda held: self._groups.as_share(held, alter))

    def delete_share_offsets(self, group_id: str, topics: Collection[str]) -> dict[str, SegstoreError | None]:
        """Delete the states of a share group without members for whole topics; return for each topic why that
        could not be done. Raises NonEmptyGroupError, GroupNotFoundError; StorageError.
        """

        def delete(share: ShareMembership) -> dict[str, SegstoreError | None]:
            _check_empty(share)
            return share.delete_offsets(topics)

        return self._ask_share(group_id, delete)

    def delete_share_group(self, group_id: str) -> None:
        """Delete a share group without members, and all its states. Raises NonEmptyGroupError,
        GroupNotFoundError; StorageError.
        """

        def end(held: GroupEntry) -> None:
            share = _share_of(held, group_id)
            _check_empty(share)
            share.end()
            self._groups.drop(held)

        self._groups.ask_held(group_id, end, make=False)

    def forget_share_topics(self) -> None:
        """Delete the states of share groups for topics that were deleted. Raises StorageError,
        OffsetNotAvailableError; the next heartbeat of a group does it, too.
        """
        for group_id in self._offsets.share_groups():
            with suppress(GroupNotFoundError):  # it was deleted at this moment
                self._ask_share(group_id, lambda share: share.forget_deleted(self._groups.topics()))

    def set_share_states(self, states: Callable[[], DurableStates]) -> None:
        """Have share groups keep the states of their partitions there."""
        self._groups.shares.states = states

    def set_share_fence(self, fence: Fence) -> None:
        """Have this called with share partitions whose states were deleted or begun anew: those in memory
        are out of date. It is called under the group's lock, and must not ask for a group.
        """
        self._groups.shares.fence = fence

    def _ask_share(self, group_id: str, ask: Callable[[ShareMembership], T]) -> T:
        return self._groups.ask_held(group_id, lambda held: ask(_share_of(held, group_id)), make=False)


def _share_of(held: GroupEntry, group_id: str) -> ShareMembership:
    """Return a held group that is a share group. Raises GroupNotFoundError."""
    if held.share is None:
        raise GroupNotFoundError(f"there is no share group {group_id!r}")
    return held.share


def _check_empty(share: ShareMembership) -> None:
    if share.group.members:
        raise NonEmptyGroupError(f"share group {share.group.group_id!r} has members: stop them first")
