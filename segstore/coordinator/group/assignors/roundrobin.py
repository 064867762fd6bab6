"""Round robin: all partitions in turn to all members. Nothing on disk. Threads: any."""

from __future__ import annotations

from segstore.coordinator.group.assignors.base import Assignment, Members, Partitions, Stateless, in_order
from segstore.coordinator.structs import TopicPartition


class RoundRobinAssignor(Stateless):
    """A member that does not subscribe to a partition's topic is passed over (Kafka: RoundRobinAssignor)."""

    name = "roundrobin"

    def assign(self, partitions: Partitions, members: Members) -> Assignment:
        given: Assignment = {member: [] for member in members}
        order, turn = in_order(members), 0
        for topic in sorted({topic for member in members.values() for topic in member.topics}):
            for number in sorted(partitions.get(topic, ())):
                while topic not in members[order[turn % len(order)]].topics:
                    turn += 1
                given[order[turn % len(order)]].append(TopicPartition(topic, number))
                turn += 1
        return given
