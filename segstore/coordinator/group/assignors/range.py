"""Range: of each topic neighbouring partitions to each member. Nothing on disk. Threads: any."""

from __future__ import annotations

from segstore.coordinator.group.assignors.base import Assignment, Members, Partitions, Stateless, in_order
from segstore.coordinator.structs import TopicPartition


class RangeAssignor(Stateless):
    """Topic by topic; where they don't come out even, the first members have one more
    (Kafka: RangeAssignor).
    """

    name = "range"

    def assign(self, partitions: Partitions, members: Members) -> Assignment:
        given: Assignment = {member: [] for member in members}
        order = in_order(members)
        for topic in sorted({topic for member in members.values() for topic in member.topics}):
            numbers = sorted(partitions.get(topic, ()))
            takers = [member for member in order if topic in members[member].topics]
            share, more = divmod(len(numbers), len(takers))
            at = 0
            for i, member in enumerate(takers):
                end = at + share + (i < more)
                given[member] += [TopicPartition(topic, number) for number in numbers[at:end]]
                at = end
        return given
