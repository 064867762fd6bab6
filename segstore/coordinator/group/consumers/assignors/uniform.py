"""`UniformAssignor`: all members get the same number of partitions, and keep their partitions if possible;
balance comes before stickiness (Kafka: UniformAssignor, with UniformHomogeneousAssignmentBuilder and
UniformHeterogeneousAssignmentBuilder).

Threads: any; no state outlives a call.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from segstore.coordinator.group.consumers.assignors.base import Members, Partitions, Targets, is_homogeneous
from segstore.coordinator.offsets.consumer_schema import Assignment

_Partition = tuple[bytes, int]
_MOST_ROUNDS = 16
"""Largest number of rounds in which `_Balance` moves partitions of all topics (Kafka: MAX_ITERATION_COUNT).
Each round about halves the imbalance.
"""


class UniformAssignor:
    """The uniform assignor. If all members subscribe to the same topics, the members' numbers of partitions
    differ by at most one. If members subscribe to different topics, the numbers of two members that could
    take partitions from each other differ by at most one, except for rare cases of overlapping subscriptions.
    """

    name = "uniform"

    def assign(self, members: Members, partitions: Partitions) -> Targets:
        if not members:
            return {}
        if is_homogeneous(members):
            return _same_topics(members, partitions)
        return _Balance(members, partitions).done()


def _every(topics: Iterable[bytes], partitions: Partitions) -> Iterator[_Partition]:
    return ((topic, number) for topic in sorted(topics) for number in range(partitions[topic]))


def _kept(members: Members, partitions: Partitions) -> dict[str, list[_Partition]]:
    """Return the partitions that each member keeps: the partitions of its earlier target assignment, if they
    still exist and the member still subscribes to their topics.
    """
    return {
        member: [
            (topic, number)
            for topic, numbers in spec.target.items()
            if topic in spec.topics
            for number in sorted(numbers)
            if number < partitions[topic]
        ]
        for member, spec in members.items()
    }


def _as_targets(assigned: dict[str, list[_Partition]]) -> Targets:
    return {member: _as_assignment(owned) for member, owned in assigned.items()}


def _as_assignment(owned: list[_Partition]) -> Assignment:
    found: dict[bytes, set[int]] = {}
    for topic, number in owned:
        found.setdefault(topic, set()).add(number)
    return {topic: frozenset(numbers) for topic, numbers in found.items()}


# --- all members subscribe to the same topics ----------------------------------------------------


def _same_topics(members: Members, partitions: Partitions) -> Targets:
    """Return the target assignments of members that all subscribe to the same topics. Members keep partitions
    up to their quota; then members below their quota get the partitions without an owner. If the division
    leaves a remainder of n, the quota of n members is larger by one. The larger quota goes first to members
    that have more partitions than the smaller quota.
    """
    topics = next(iter(members.values())).topics
    assigned = _kept(members, partitions)
    share, more = divmod(sum(partitions[topic] for topic in topics), len(members))
    for owned in assigned.values():
        larger = len(owned) > share and more > 0
        more -= larger
        del owned[share + larger :]
    kept = {each for owned in assigned.values() for each in owned}
    free = (each for each in _every(topics, partitions) if each not in kept)
    for owned in assigned.values():
        larger = len(owned) <= share and more > 0
        more -= larger
        # The quotas add up to the number of all partitions, so `free` has enough.
        owned += [next(free) for _ in range(share + larger - len(owned))]
    return _as_targets(assigned)


# --- members subscribe to different topics -------------------------------------------------------


class _Balance:
    """Computes the target assignments of members that subscribe to different topics. Members keep their
    partitions, and free partitions go to the members with fewest partitions. Then, topic by topic, partitions
    move from members with most partitions to members with fewest, until no move makes the numbers more even.
    """

    def __init__(self, members: Members, partitions: Partitions) -> None:
        self._order = {member: at for at, member in enumerate(members)}
        self._partitions = partitions
        self._takers: dict[bytes, list[str]] = {}
        for member, spec in members.items():
            for topic in spec.topics:
                self._takers.setdefault(topic, []).append(member)
        self._owners: dict[_Partition, str] = {}
        self._sizes = dict.fromkeys(members, 0)
        for member, owned in _kept(members, partitions).items():
            for each in owned:
                self._give(each, member)

    def done(self) -> Targets:
        """Return the target assignments."""
        topics = sorted(self._takers, key=self._rank)
        for topic in topics:
            self._hand_out(topic)
        for _ in range(_MOST_ROUNDS):
            moved = [self._level(topic) for topic in topics]
            if not any(moved):
                break
        assigned: dict[str, list[_Partition]] = {member: [] for member in self._order}
        for each, member in self._owners.items():
            assigned[member].append(each)
        return _as_targets(assigned)

    def _rank(self, topic: bytes) -> tuple[float, int, bytes]:
        """Return the sort key of a topic: topics with many partitions per member come first, because the
        other topics can even out the members' totals afterwards.
        """
        takers = len(self._takers[topic])
        return -self._partitions[topic] / takers, takers, topic

    def _give(self, each: _Partition, member: str) -> None:
        before = self._owners.get(each)
        if before is not None:
            self._sizes[before] -= 1
        self._owners[each] = member
        self._sizes[member] += 1

    def _by_size(self, topic: bytes, sign: int) -> list[tuple[int, int, str]]:
        found = [(sign * self._sizes[m], sign * self._order[m], m) for m in self._takers[topic]]
        heapq.heapify(found)
        return found

    def _hand_out(self, topic: bytes) -> None:
        """Give the topic's free partitions to the members with fewest partitions."""
        least = self._by_size(topic, 1)
        for each in _every([topic], self._partitions):
            if each not in self._owners:
                size, at, member = least[0]
                self._give(each, member)
                heapq.heapreplace(least, (size + 1, at, member))

    def _level(self, topic: bytes) -> bool:
        """Move the topic's partitions from subscribers with many partitions (in all topics) to subscribers
        with few partitions, until no move makes the numbers more even. Return whether a partition was moved.
        """
        theirs: dict[str, list[_Partition]] = {}
        for each in _every([topic], self._partitions):
            theirs.setdefault(self._owners[each], []).append(each)
        most, moved = self._by_size(topic, -1), False
        least = self._by_size(topic, 1)
        while most:
            (size, at, giver), (small, place, taker) = most[0], least[0]
            if self._sizes[giver] != -size:
                heapq.heappop(most)  # the entry is outdated: in this loop the member got a partition
            elif self._sizes[taker] != small:
                heapq.heappop(least)  # the entry is outdated: in this loop the member gave a partition away
            elif -size - small <= 1:
                break
            elif not theirs.get(giver):
                heapq.heappop(most)
            else:
                self._give(theirs[giver].pop(), taker)
                heapq.heapreplace(most, (size + 1, at, giver))
                heapq.heapreplace(least, (small + 1, place, taker))
                moved = True
        return moved
