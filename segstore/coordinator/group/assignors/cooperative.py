"""Cooperative sticky: the sticky assignment, a partition that moves being free for one round first (KIP-429).

Nothing on disk. Threads: any; without state. (Kafka: CooperativeStickyAssignor.adjustAssignment.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from segstore.coordinator.group.assignors.balancer import Balancer
from segstore.coordinator.group.assignors.base import Assignment, Members, Partitions
from segstore.coordinator.structs import TopicPartition


class CooperativeStickyAssignor:
    """Members keep what they own while the group rebalances. What goes from one to another is given to nobody
    until its owner has given it up: that one joins again, and the next round gives it away.
    """

    name = "cooperative-sticky"
    cooperative = True

    def assign(self, partitions: Partitions, members: Members) -> Assignment:
        claims = {member: (told.generation, list(told.owned)) for member, told in members.items()}
        wanted = Balancer(partitions, members, claims).run()
        owners = _owners(members)
        return {
            member: [p for p in held if owners.get(p, {member}) == {member}]
            for member, held in wanted.items()
        }

    def user_data(self, topics: Sequence[str], owned: Iterable[TopicPartition], generation: int) -> bytes:
        """Nothing: what is owned is in the subscription itself."""
        return b""


def _owners(members: Members) -> dict[TopicPartition, set[str]]:
    """Who still has each partition: of those that claim it, who does so in the latest generation.

    A member that missed a generation has lost what it had.
    """
    latest: dict[TopicPartition, int] = {}
    owners: dict[TopicPartition, set[str]] = {}
    for member, told in members.items():
        for partition in told.owned:
            known = latest.get(partition, told.generation)
            if told.generation > known:
                owners[partition] = set()
            if told.generation >= known:
                latest[partition] = told.generation
                owners.setdefault(partition, set()).add(member)
    return owners
