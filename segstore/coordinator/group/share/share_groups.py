"""`ShareGroups`: makes share groups (KIP-932) from their records in a store's log.

On disk: records of `__consumer_offsets`, through `GroupOffsets`. Threads: any; a group is used under the
group's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from segstore.coordinator.group.consumers.topics import AssignableTopics
from segstore.coordinator.group.share.group import ShareGroup
from segstore.coordinator.group.share.initialising import DurableStates
from segstore.coordinator.group.share.keeper import Fence, ShareOutside
from segstore.coordinator.group.share.membership import ShareMembership
from segstore.coordinator.group_settings import group_settings
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.offsets.share_schema import ShareChange
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.shared import existing, shared
from segstore.storage.store.store import Store

Write = Callable[[Callable[[], None]], None]
"""Calls a function that writes a group's records. If the outcome of the write is unknown, the group is later
read again from the log.
"""


class ShareGroups:
    """Makes share groups. `states` returns the durable states of the store's share partitions; `fence` drops
    share partitions from memory. `ShareRequests.set_share_states` and `ShareRequests.set_share_fence` replace
    these functions.
    """

    def __init__(self, store: Store, offsets: GroupOffsets, topics: Callable[[], AssignableTopics]) -> None:
        self._store, self._offsets, self._topics = store, offsets, topics
        self._settings = group_settings(store)
        self.states: Callable[[], DurableStates] = partial(_state_log, store)
        self.fence: Fence = partial(_fence_led, store)

    def made(self, group_id: str, write_sure: Write, now: float) -> ShareMembership:
        """Return a share group that is made from its records in the log."""

        def write(changes: Sequence[ShareChange]) -> None:
            write_sure(partial(self._offsets.write_share, group_id, changes))

        outside = ShareOutside(
            write,
            self._topics,
            self._store.context.clock,
            partial(self._settings.share_timing, group_id),
            self._states,
            self._fence,
            self._store.writer().config.group_share_max_size,
        )
        return ShareMembership(ShareGroup(group_id, self._offsets.share(group_id)), outside, now)

    def _states(self) -> DurableStates:
        return self.states()

    def _fence(self, keys: Collection[ShareKey]) -> None:
        self.fence(keys)


def _state_log(store: Store) -> DurableStates:
    # This module is imported here, because only share groups need it.
    from segstore.coordinator.share.state_log import StateLog

    return shared(store, StateLog)


def _fence_led(store: Store, keys: Collection[ShareKey]) -> None:
    """If the store has a ShareCoordinator, drop share partitions from its memory."""
    # This module is imported here, because only share groups need it.
    from segstore.coordinator.share.share import ShareCoordinator

    coordinator = existing(store, ShareCoordinator)
    if coordinator is not None:
        coordinator.fence(keys)
