"""`ShareGroupAdmin`: the methods of `AdminClient` for share groups (KIP-932), with the names of Kafka's
Admin. They are for the groups' members, start offsets and lag.

On disk: what the store's functions write. Threads: any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, TypeVar

from segstore.config import arguments
from segstore.coordinator.group.admin import Groups
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.group.descriptions import SHARE, GroupDescription, PartitionState
from segstore.coordinator.retriable import when_loaded
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import TopicPartition
from segstore.errors import GroupNotFoundError, InvalidTypeError, SegstoreError, copy_of
from segstore.storage.store.store import Store

T = TypeVar("T")


class SharePartitionOffsetInfo(NamedTuple):
    """The progress of a share group in a partition. `start_offset` is the first offset that is neither
    acknowledged nor archived. `lag` is the number of such offsets from `start_offset` on (KIP-1226). The
    start offset and the lag are None while they are unknown, for example before the group's first fetch.
    """

    start_offset: int | None
    leader_epoch: int | None
    lag: int | None


class ShareGroupAdmin:
    """The methods of `AdminClient` for the share groups of a store, `_store`."""

    @property
    def _store(self) -> Store:
        raise NotImplementedError

    def describe_share_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """Return state, members, start offsets and lag of share groups, by id. Raises GroupNotFoundError."""
        groups = Groups(self._store)
        described = {group: groups.describe(group) for group in listed("group_ids", group_ids)}
        for group, each in described.items():
            if each.group_type != SHARE:
                raise GroupNotFoundError(f"group {group!r} is not a share group")
        return described

    def list_share_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, SharePartitionOffsetInfo]:
        """Return the progress of a share group in these partitions, by default in all partitions for which
        the coordinator has a share-partition state of the group. Raises GroupNotFoundError.
        """
        states = self.describe_share_groups([group_id])[group_id].partitions
        known = {state.partition: _offset_info(state) for state in states}
        if partitions is None:
            return known
        unknown = SharePartitionOffsetInfo(None, None, None)
        return {TopicPartition(*tp): known.get(TopicPartition(*tp), unknown) for tp in partitions}

    def alter_share_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, SegstoreError | None]:
        """Set the start offsets of a share group that has no members; create the group if it does not exist.
        Return each partition's error, or None if the partition's offset was set. Raises NonEmptyGroupError if
        the group has members, and GroupNotFoundError if it is no share group.
        """
        if not isinstance(offsets, Mapping):
            raise InvalidTypeError(f"offsets must be a dict by TopicPartition, not {type(offsets).__name__}")
        asked = {
            TopicPartition(*tp): arguments.whole("offset", offset, None) for tp, offset in offsets.items()
        }
        return self._when_loaded(lambda groups: groups.alter_share_offsets(group_id, asked))

    def delete_share_group_offsets(
        self, group_id: str, topics: Iterable[str]
    ) -> dict[str, SegstoreError | None]:
        """Delete the offsets that a share group has stored for these topics. Return {topic: error, or None if
        the offsets were deleted}. Raises NonEmptyGroupError if the group has members, and GroupNotFoundError.
        """
        names = listed("topics", topics)
        return self._when_loaded(lambda groups: groups.delete_share_offsets(group_id, names))

    def delete_share_groups(self, group_ids: Iterable[str]) -> dict[str, SegstoreError | None]:
        """Delete share groups. Return {group: error, or None if the group was deleted}."""
        deleted = dict[str, SegstoreError | None]()
        for group in listed("group_ids", group_ids):
            try:
                self._when_loaded(partial(_delete, group))
                deleted[group] = None
            except SegstoreError as error:
                deleted[group] = copy_of(error)
        return deleted

    def _when_loaded(self, ask: Callable[[GroupCoordinator], T]) -> T:
        """Return the result of `ask`. While the coordinator loads the groups, `ask` is called again."""
        store = self._store
        groups = shared(store, GroupCoordinator)
        return when_loaded(store, lambda: ask(groups), store.context.check_open, None)


def _delete(group_id: str, groups: GroupCoordinator) -> None:
    groups.delete_share_group(group_id)


def _offset_info(part: PartitionState) -> SharePartitionOffsetInfo:
    start = part.committed
    if start is None:
        return SharePartitionOffsetInfo(None, None, None)
    return SharePartitionOffsetInfo(start.offset, start.leader_epoch, part.lag)


def listed(name: str, given: object) -> list[str]:
    """Return `given`, an iterable of names, as a list. Raises InvalidTypeError if it is a str or bytes, or no
    iterable.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidTypeError(f"{name} must be a list of names, not {type(given).__name__}")
    return list(given)
