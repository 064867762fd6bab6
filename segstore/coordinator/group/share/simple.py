"""`assign`: the assignor "simple" of share groups (KIP-932; Kafka: SimpleAssignor,
SimpleHomogeneousAssignmentBuilder, SimpleHeterogeneousAssignmentBuilder).

With m members and p partitions each partition goes to ceil(m / p) members, and two members' numbers of
partitions differ by at most one. Within these limits members keep their partitions. If members subscribe to
different topics, the same holds for each topic and its subscribers.
Threads: any; a function without state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from segstore.coordinator.offsets.consumer_schema import Assignment

_Partition = tuple[bytes, int]


class ShareMemberSpec(NamedTuple):
    """The input of the assignor for one member: the ids of its subscribed topics, and the partitions that it
    had.
    """

    topics: frozenset[bytes]
    had: Assignment


def assign(members: Mapping[str, ShareMemberSpec], there: Assignment) -> dict[str, Assignment]:
    """Return the partitions of each member; `there` has the partitions to assign."""
    names = sorted(members)
    had = {name: set(_pairs(members[name].had)) for name in names}
    assigned: dict[str, set[_Partition]] = {name: set() for name in names}
    for subscribers, partitions in _pools(names, members, there):
        pool = _AssignmentPool(subscribers, partitions, had, assigned)
        pool.keep()
        pool.fill()
        for name, held in pool.held.items():
            assigned[name] |= held
    return {name: _assignment(held) for name, held in assigned.items()}


def _pools(
    names: Sequence[str], members: Mapping[str, ShareMemberSpec], there: Assignment
) -> list[tuple[list[str], list[_Partition]]]:
    """Return pools, each as (members, partitions that these members share): one pool if all members subscribe
    to the same topics, else one pool for each topic.
    """
    topics = sorted(there)
    if len({members[name].topics for name in names}) == 1:
        wanted = [topic for topic in topics if topic in members[names[0]].topics]
        pools = [(list(names), [pair for topic in wanted for pair in _pairs({topic: there[topic]})])]
    else:
        pools = [
            ([name for name in names if topic in members[name].topics], list(_pairs({topic: there[topic]})))
            for topic in topics
        ]
    return [(subscribers, partitions) for subscribers, partitions in pools if subscribers and partitions]


class _AssignmentPool:
    """The members and partitions of one pool. `held` maps each member to its partitions; `room` maps each
    partition to the number of members that must still get it. The members' quotas add up to the `room` of all
    partitions.
    """

    def __init__(
        self,
        members: Sequence[str],
        partitions: Sequence[_Partition],
        had: Mapping[str, set[_Partition]],
        assigned: Mapping[str, set[_Partition]],
    ) -> None:
        self._members, self._partitions = members, partitions
        sharing = -(-len(members) // len(partitions))
        self.room = dict.fromkeys(partitions, sharing)
        self.held: dict[str, set[_Partition]] = {name: set() for name in members}
        there = set(partitions)
        self._earlier = {name: had[name] & there for name in members}
        self._least, extra = divmod(len(partitions) * sharing, len(members))
        # The larger quota goes to the members with most earlier partitions. If two members have the same
        # number, the larger quota goes to the member with fewer partitions from other pools.
        order = sorted(members, key=lambda name: (-len(self._earlier[name]), len(assigned[name]), name))
        self._larger = set(order[:extra])

    def _quota(self, name: str) -> int:
        return self._least + (name in self._larger)

    def keep(self) -> None:
        """Give members their earlier partitions again, as far as the members' quotas and the partitions'
        `room` allow.
        """
        for name in self._members:
            for pair in sorted(self._earlier[name]):
                if len(self.held[name]) == self._quota(name):
                    break
                if self.room[pair]:
                    self._give(name, pair)

    def fill(self) -> None:
        """Give members partitions until they reach their quota."""
        free = deque(pair for pair in self._partitions if self.room[pair])
        for name in self._members:
            while len(self.held[name]) < self._quota(name):
                pair = self._next(name, free)
                self._give(name, self._swapped(name, free) if pair is None else pair)

    def _next(self, name: str, free: deque[_Partition]) -> _Partition | None:
        """Return the next partition of `free` that has room and that the member does not have yet, or None if
        there is no such partition.
        """
        for _ in range(len(free)):
            pair = free.popleft()
            if self.room[pair]:
                free.append(pair)
                if pair not in self.held[name]:
                    return pair
        return None

    def _swapped(self, name: str, free: Iterable[_Partition]) -> _Partition:
        """Take a partition from another member, and give this other member a partition with room instead.
        Return the partition that was taken.
        """
        with_room = next(pair for pair in free if self.room[pair])
        # Some member lacks `with_room`, and has a partition that `name` lacks, because a partition without
        # room has more members than a partition with room.
        for other in self._members:
            if with_room not in self.held[other]:
                for pair in sorted(self.held[other] - self.held[name]):
                    self.held[other].remove(pair)
                    self.room[pair] += 1
                    self._give(other, with_room)
                    return pair
        raise AssertionError(f"{name} can't have its number of partitions")

    def _give(self, name: str, pair: _Partition) -> None:
        self.held[name].add(pair)
        self.room[pair] -= 1


def _pairs(assignment: Assignment) -> Iterable[_Partition]:
    return ((topic, number) for topic, numbers in assignment.items() for number in sorted(numbers))


def _assignment(pairs: Iterable[_Partition]) -> Assignment:
    found: dict[bytes, set[int]] = {}
    for topic, number in sorted(pairs):
        found.setdefault(topic, set()).add(number)
    return {topic: frozenset(numbers) for topic, numbers in found.items()}
