"""`ConsumerGroupRangeAssignor`: each member gets neighbouring partitions of each topic, and topics with equal
numbers of partitions are handed out alike (Kafka: org.apache.kafka.coordinator.group.assignor.RangeAssignor).
Threads: any; no state.
"""

from __future__ import annotations

from segstore.coordinator.group.consumers.assignors.base import Members, Partitions, Targets
from segstore.coordinator.offsets.consumer_schema import Assignment


class ConsumerGroupRangeAssignor:
    """Static members come first, in the order of their instance ids, then the others in the order of theirs;
    where the numbers don't come out even, the first members get one partition more.
    """

    name = "range"

    def assign(self, members: Members, partitions: Partitions) -> Targets:
        given: dict[str, dict[bytes, frozenset[int]]] = {member: {} for member in members}
        for topic, takers in _subscribers(members).items():
            share, more = divmod(partitions[topic], len(takers))
            at = 0
            for turn, member in enumerate(takers):
                end = at + share + (turn < more)
                if at < end:
                    given[member][topic] = frozenset(range(at, end))
                at = end
        found: dict[str, Assignment] = dict(given)
        return found


def _subscribers(members: Members) -> dict[bytes, list[str]]:
    """Return by topic its members, in order."""

    def key(member: str) -> tuple[bool, str]:
        instance = members[member].instance_id
        return (True, member) if instance is None else (False, instance)

    found: dict[bytes, list[str]] = {}
    for member in sorted(members, key=key):
        for topic in members[member].topics:
            found.setdefault(topic, []).append(member)
    return found
