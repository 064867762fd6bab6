"""`ConsumerGroupRangeAssignor`: each member gets a range of each topic's partitions. If topics have the same
subscribers and the same number of partitions, a member gets the same range of each of these topics (Kafka:
org.apache.kafka.coordinator.group.assignor.RangeAssignor). Threads: any; no state.
"""

from __future__ import annotations

from segstore.coordinator.group.consumers.assignors.base import Members, Partitions, Targets
from segstore.coordinator.offsets.consumer_schema import Assignment


class ConsumerGroupRangeAssignor:
    """Assigns ranges in the order of the members: static members come first, by instance id, then dynamic
    members, by member id. If the division leaves a remainder, the first members get one partition more.
    """

    name = "range"

    def assign(self, members: Members, partitions: Partitions) -> Targets:
        targets: dict[str, dict[bytes, frozenset[int]]] = {member: {} for member in members}
        for topic, takers in _subscribers(members).items():
            share, more = divmod(partitions[topic], len(takers))
            begin = 0
            for turn, member in enumerate(takers):
                end = begin + share + (turn < more)
                if begin < end:
                    targets[member][topic] = frozenset(range(begin, end))
                begin = end
        found: dict[str, Assignment] = dict(targets)
        return found


def _subscribers(members: Members) -> dict[bytes, list[str]]:
    """Return the members that subscribe to each topic, in the order in which they get partitions."""

    def key(member: str) -> tuple[bool, str]:
        instance = members[member].instance_id
        return (True, member) if instance is None else (False, instance)

    found: dict[bytes, list[str]] = {}
    for member in sorted(members, key=key):
        for topic in members[member].topics:
            found.setdefault(topic, []).append(member)
    return found
