"""`GroupMembership`: one consumer's membership in its group, by either of Kafka's two group protocols.

Threads: one, the consumer's; the coordinator reads the member's `Pulse`, which has the times of the last poll
and heartbeat.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from segstore.client.consumer.config import ConsumerConfig
from segstore.coordinator.group.classic.member import Pulse
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.structs import ConsumerGroupMetadata


class GroupMembership(ABC):
    """A consumer's membership. `generation` is the generation of a classic group, or the member's epoch in a
    consumer group. It is -1 while the member is not in its group; the partitions may then belong to another
    member.
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
        """Return kafka-python's name of the member's state."""

    @property
    @abstractmethod
    def may_commit(self) -> bool:
        """Return whether the partitions still belong to the member, so that it may commit."""

    @property
    @abstractmethod
    def is_rebalancing(self) -> bool:
        """Return whether the member waits for its assignment. A poll fetches the assignment."""

    @property
    @abstractmethod
    def left(self) -> bool:
        """Return whether the member has left its group, or has never joined."""

    def polled(self) -> None:
        """Record the time of a poll in the member's `Pulse`, which the coordinator reads."""
        if self.pulse is not None:
            self.pulse.polled = self._coordinator.now()

    @abstractmethod
    def out(self, error: Exception) -> None:
        """Act on `error`, with which the coordinator has answered. After most errors the member has no
        generation.
        """

    @abstractmethod
    def leave(self) -> None:
        """Leave the group. A static member that joins again within its session timeout gets its partitions
        back.
        """

    def _begin_pulse(self, interval_ms: float) -> Pulse:
        """Return the `Pulse` of a member that joins its group. The current time counts as the time of the
        member's last poll.
        """
        if self.pulse is None:
            self.pulse = Pulse(self._coordinator.now(), interval_ms, self._config.max_poll_interval_ms)
        # Without this call, a member that joins again because it had polled too late would count as late at
        # once.
        self.polled()
        return self.pulse
