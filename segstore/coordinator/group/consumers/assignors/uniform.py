"""`UniformAssignor`: all members get the same number of partitions, and keep those that they have where that
is possible; balance comes before stickiness (Kafka: UniformAssignor, with
UniformHomogeneousAssignmentBuilder and UniformHeterogeneousAssignmentBuilder).
Threads: any; no state outlives a call.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from segstore.coordinator.group.consumers.assignors.base import Members, Partitions, Targets, is_homogeneous
from segstore.coordinator.offsets.consumer_schema import Assignment

_Partition = tuple[bytes, int]
_MOST_ROUNDS = 16
"""How often all topics are balanced anew where members subscribe to different ones (Kafka:
MAX_ITERATION_COUNT): each round about halves what is out of balance.
"""


class UniformAssignor:
    """Numbers of partitions differ by one at most where all members subscribe to the same topics. Where they
    don't, that holds for members of which each could have a partition of the other's, but for rare cases of
    overlapping subscriptions.
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
    """Return of each member the partitions of its target that are there and to which it subscribes."""
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


def _as_targets(given: dict[str, list[_Partition]]) -> Targets:
    return {member: _as_assignment(held) for member, held in given.items()}


def _as_assignment(held: list[_Partition]) -> Assignment:
    found: dict[bytes, set[int]] = {}
    for topic, number in held:
        found.setdefault(topic, set()).add(number)
    return {topic: frozenset(numbers) for topic, numbers in found.items()}


# --- all members subscribe to the same topics ----------------------------------------------------


def _same_topics(members: Members, partitions: Partitions) -> Targets:
    """Members keep up to their share, of which the first ones that have more keep one more; then those that
    have less are filled up.
    """
    topics = next(iter(members.values())).topics
    given = _kept(members, partitions)
    share, more = divmod(sum(partitions[topic] for topic in topics), len(members))
    for held in given.values():
        larger = len(held) > share and more > 0
        more -= larger
        del held[share + larger :]
    taken = {each for held in given.values() for each in held}
    left = (each for each in _every(topics, partitions) if each not in taken)
    for held in given.values():
        larger = len(held) <= share and more > 0
        more -= larger
        # Exactly so many are left.
        held += [next(left) for _ in range(share + larger - len(held))]
    return _as_targets(given)


# --- members subscribe to different topics -------------------------------------------------------


class _Balance:
    """Members keep what they have, the rest goes to those that have least; then partitions of each topic go
    from those members of it that have most to those that have least, until that changes nothing.
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
        for member, held in _kept(members, partitions).items():
            for each in held:
                self._give(each, member)

    def done(self) -> Targets:
        """Return the targets."""
        topics = sorted(self._takers, key=self._rank)
        for topic in topics:
            self._hand_out(topic)
        for _ in range(_MOST_ROUNDS):
            moved = [self._level(topic) for topic in topics]
            if not any(moved):
                break
        given: dict[str, list[_Partition]] = {member: [] for member in self._order}
        for each, member in self._owners.items():
            given[member].append(each)
        return _as_targets(given)

    def _rank(self, topic: bytes) -> tuple[float, int, bytes]:
        """Topics with many partitions for few members come first: others even out what they do."""
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
        """Give the partitions that nobody has to the members that have least."""
        least = self._by_size(topic, 1)
        for each in _every([topic], self._partitions):
            if each not in self._owners:
                size, at, member = least[0]
                self._give(each, member)
                heapq.heapreplace(least, (size + 1, at, member))

    def _level(self, topic: bytes) -> bool:
        """Move partitions of the topic until its members' numbers differ by one at most, or those that have
        most have none of it. Return whether any was moved.
        """
        theirs: dict[str, list[_Partition]] = {}
        for each in _every([topic], self._partitions):
            theirs.setdefault(self._owners[each], []).append(each)
        most, moved = self._by_size(topic, -1), False
        least = self._by_size(topic, 1)
        while most:
            (size, at, giver), (small, place, taker) = most[0], least[0]
            if self._sizes[giver] != -size:
                heapq.heappop(most)  # it got partitions meanwhile, and has not too many
            elif self._sizes[taker] != small:
                heapq.heappop(least)  # it gave partitions away meanwhile, and has not too few
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
