"""`ServerAssignor`, the protocol of all server-side assignors, and `MemberSpec`, their input (Kafka:
ConsumerGroupPartitionAssignor, GroupSpec). Threads: any; assignors have no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from segstore.coordinator.offsets.consumer_schema import Assignment


class MemberSpec(NamedTuple):
    """The input of an assignor for one member: the ids of its subscribed topics, all of which exist; its
    target assignment so far; its instance id if the member is static.
    """

    topics: frozenset[bytes]
    target: Assignment
    instance_id: str | None = None


Members = Mapping[str, MemberSpec]
Partitions = Mapping[bytes, int]
"""The number of partitions of each topic, by topic id."""
Targets = dict[str, Assignment]
"""The target assignment of each member, by member id."""


class ServerAssignor(Protocol):
    """Assigns the partitions of all topics to which members subscribe."""

    @property
    def name(self) -> str:
        """Return the name by which members ask for the assignor. It is the name that Kafka uses."""

    def assign(self, members: Members, partitions: Partitions) -> Targets:
        """Return the target assignments of all members, by member id."""


def is_homogeneous(members: Members) -> bool:
    """Return whether all members subscribe to the same topics (Kafka: SubscriptionType.HOMOGENEOUS)."""
    return len({spec.topics for spec in members.values()}) <= 1
