"""`GroupMembership`: one consumer's membership in its group, by either protocol.

Threads: one, the consumer's; the coordinator reads its `Pulse`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from segstore.client.consumer.config import ConsumerConfig
from segstore.coordinator.group.classic.member import Pulse
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.structs import ConsumerGroupMetadata


class GroupMembership(ABC):
    """A consumer's membership. `generation` is the generation of a classic group, or the member's epoch in a
    consumer group; it is -1 while the member is not in its group, so that its partitions may belong to
    another member.
    """

    def __init__(self, coordinator: GroupCoordinator, config: ConsumerConfig) -> None:
        assert config.group_id is not None
        self._coordinator, self._config, self._group = coordinator, config, config.group_id
        self._instance = config.group_instance_id
        self.member_id, self.generation = "", -1
        self.pulse: Pulse | None = None

    @property
    def metadata(self) -> ConsumerGroupMetadata:
        return ConsumerGroupMetadata(
            self._group, self.generation, self.member_id, self._instance, self._state
        )

    @property
    @abstractmethod
    def _state(self) -> str:
        """Return the state of the member by kafka-python's name."""

    @property
    @abstractmethod
    def may_commit(self) -> bool:
        """Return whether the partitions still belong to the member, so that it may commit."""

    @property
    @abstractmethod
    def is_rebalancing(self) -> bool:
        """Return whether the member waits for its assignment, which it gets in a poll."""

    @property
    @abstractmethod
    def left(self) -> bool:
        """Return whether the member has left its group, or never joined one."""

    def polled(self) -> None:
        """Note a poll of the application."""
        if self.pulse is not None:
            self.pulse.polled = self._coordinator.now()

    @abstractmethod
    def out(self, error: Exception) -> None:
        """Leave the generation after an error of the group."""

    @abstractmethod
    def leave(self) -> None:
        """Leave the group; a static member may return to its partitions within its session timeout."""

    def _begin_pulse(self, interval_ms: float) -> Pulse:
        """Return the pulse of a member that joins its group. The current time counts as the time of its last
        poll.
        """
        if self.pulse is None:
            self.pulse = Pulse(self._coordinator.now(), interval_ms, self._config.max_poll_interval_ms)
        # Else a member that polled too late and joins again would count as late at once.
        self.polled()
        return self.pulse
