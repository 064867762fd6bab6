"""The demo's group, as its members join it and as others see it. On disk: nothing of its own.

Threads: any.
"""

from __future__ import annotations

from typing import Any

import segstore
from segstore.coordinator.consumer_protocol import decode_assignment
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared

GROUP = "departure-boards"


class GroupView:
    """Of one topic's part in the group."""

    def __init__(self, store: segstore.Store, topic: str) -> None:
        self._store, self._topic = store, topic
        self._coordinator, self._offsets = shared(store, GroupCoordinator), shared(store, GroupOffsets)

    def consumer(self, patience_ms: int, **settings: Any) -> segstore.Consumer:
        """A member, which is out when it does not poll for `patience_ms`. It commits when it is told to."""
        return segstore.Consumer(
            self._store,
            group_id=GROUP,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_interval_ms=patience_ms,
            partition_assignment_strategy=["cooperative-sticky"],
            **settings,
        )

    def committed(self) -> dict[int, int]:
        """Committed offsets by partition, where there are some."""
        found = self._offsets.fetch(GROUP)
        return {tp.partition: at.offset for tp, at in found.items() if tp.topic == self._topic}

    def owners(self) -> dict[int, str]:
        """Each partition's member, by its client id."""
        return {
            tp.partition: member.client_id
            for member in self._coordinator.members(GROUP)
            for tp in decode_assignment(member.assignment)
            if tp.topic == self._topic
        }

    def state(self) -> str:
        """The group's state in a few words."""
        members = len(self._coordinator.members(GROUP))
        state, generation = self._coordinator.state(GROUP), self._coordinator.generation(GROUP)
        return f"{GROUP}, {state.value}, generation {generation}, {members} members"
