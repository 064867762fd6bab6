"""`ServerAssignor`, the protocol of all server-side assignors, and `MemberSpec`, their input (Kafka:
ConsumerGroupPartitionAssignor, GroupSpec). Threads: any; assignors have no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from segstore.coordinator.offsets.consumer_schema import Assignment


class MemberSpec(NamedTuple):
    """A member as the input of an assignor: the ids of its subscribed topics, which all exist; its current
    target; the instance id of a static member.
    """

    topics: frozenset[bytes]
    target: Assignment
    instance_id: str | None = None


Members = Mapping[str, MemberSpec]
Partitions = Mapping[bytes, int]
"""The number of partitions of each topic, by id."""
Targets = dict[str, Assignment]
"""The target assignment of each member, by member id."""


class ServerAssignor(Protocol):
    """Assigns the partitions of all topics to which members subscribe."""

    @property
    def name(self) -> str:
        """Return Kafka's name of the assignor, as members send it."""

    def assign(self, members: Members, partitions: Partitions) -> Targets:
        """Return the target assignments of all members."""


def is_homogeneous(members: Members) -> bool:
    """Return whether all members subscribe to the same topics (Kafka: SubscriptionType.HOMOGENEOUS)."""
    return len({spec.topics for spec in members.values()}) <= 1
