"""`ServerAssignor`, the protocol of all server-side assignors, and what they are told of the members (Kafka:
ConsumerGroupPartitionAssignor, GroupSpec). Threads: any; nothing here has state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from segstore.coordinator.offsets.consumer_schema import Assignment


class MemberSpec(NamedTuple):
    """A member: the ids of the topics to which it subscribes, which all exist; the partitions that were its
    target so far; the instance id of a static member.
    """

    topics: frozenset[bytes]
    target: Assignment
    instance_id: str | None = None


Members = Mapping[str, MemberSpec]
Partitions = Mapping[bytes, int]
"""The number of partitions of each topic, by id."""
Targets = dict[str, Assignment]
"""The partitions that each member shall have."""


class ServerAssignor(Protocol):
    """Hands out the partitions of all topics to which members subscribe."""

    @property
    def name(self) -> str:
        """Kafka's name, by which members ask for it."""

    def assign(self, members: Members, partitions: Partitions) -> Targets:
        """Return the targets of all members."""


def is_homogeneous(members: Members) -> bool:
    """Return whether all members subscribe to the same topics (Kafka: SubscriptionType.HOMOGENEOUS)."""
    return len({spec.topics for spec in members.values()}) <= 1
