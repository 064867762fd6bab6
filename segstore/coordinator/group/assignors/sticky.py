"""The sticky assignors: as even as possible, and of the even assignments one that moves few partitions; and
the cooperative one, which moves a partition in two rounds.

Threads: any; a `Balancer` belongs to one call. KIP-54; Kafka: AbstractStickyAssignor, its general
algorithm, as kafka-python has it. Ties are broken by name, so that every leader computes the same
assignment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from segstore.coordinator.group.assignors.base import Assignment, Members, Partitions
from segstore.coordinator.structs import TopicPartition, by_topic
from segstore.protocol.codec import decode_at, encode, structs

# --- claims ------------------------------------------------------------------------------------

# Which member owns which partition, from what members claim: the claim of the latest generation holds (Kafka:
# AbstractStickyAssignor.prepopulateCurrentAssignments).

Claims = Mapping[str, tuple[int, list[TopicPartition]]]


def resolve_owners(claims: Claims) -> tuple[dict[str, list[TopicPartition]], dict[TopicPartition, str]]:
    """Return the partitions of each member that owns some, and for each partition the owner before the
    current one.

    Of two members that claim a partition in one generation the first one owns it.
    """
    owners: dict[TopicPartition, dict[int, str]] = {}
    for member, (generation, partitions) in claims.items():
        for partition in partitions:
            owners.setdefault(partition, {}).setdefault(generation, member)
    current: dict[str, list[TopicPartition]] = {}
    previous: dict[TopicPartition, str] = {}
    for partition, by_generation in owners.items():
        latest, *older = sorted(by_generation, reverse=True)
        current.setdefault(by_generation[latest], []).append(partition)
        if older:
            previous[partition] = by_generation[older[0]]
    return current, previous


# --- movements ---------------------------------------------------------------------------------

# Which partitions an assignment in the making has moved so far: two members must not swap partitions of one
# topic (Kafka: AbstractStickyAssignor.PartitionMovements). Threads: one, within a call of `assign`.


class _Pair(NamedTuple):
    source: str
    target: str


class Movements:
    """The first owner and the current one of each moved partition."""

    def __init__(self) -> None:
        self._pairs: dict[TopicPartition, _Pair] = {}
        self._moved: dict[tuple[str, _Pair], set[TopicPartition]] = {}

    def move(self, partition: TopicPartition, source: str, target: str) -> None:
        """Record that `partition` goes from `source` to `target`; back at its first owner it has not moved
        at all.
        """
        before = self._pairs.pop(partition, None)
        if before is not None:
            self._moved[partition.topic, before].discard(partition)
            source = before.source
        if source != target:
            pair = self._pairs[partition] = _Pair(source, target)
            self._moved.setdefault((partition.topic, pair), set()).add(partition)

    def instead(self, partition: TopicPartition, source: str, target: str) -> TopicPartition:
        """Return what to move from `source` to `target` instead: a partition that went the other way, if
        there is one.
        """
        before = self._pairs.get(partition)
        back = _Pair(target, before.source if before else source)
        return min(self._moved.get((partition.topic, back), ()), default=partition)


# --- balancer ----------------------------------------------------------------------------------

# One sticky assignment in the making (Kafka: AbstractStickyAssignor.generalAssign, balance). Threads: one,
# within a call of `assign`.


class Balancer:
    """`takers`: for each partition, the members that may have it; `wanted`: for each member, the partitions
    that it may have.
    """

    def __init__(self, partitions: Partitions, members: Members, claims: Claims) -> None:
        order = sorted(members)
        self._members = members
        self.takers: dict[TopicPartition, list[str]] = {}
        self.wanted: dict[str, dict[TopicPartition, None]] = {}
        for member in order:
            topics = sorted(set(members[member].topics))
            every = [TopicPartition(t, p) for t in topics for p in sorted(partitions.get(t, ()))]
            self.wanted[member] = dict.fromkeys(every)
            for partition in every:
                self.takers.setdefault(partition, []).append(member)
        current, self.previous = resolve_owners({member: claims[member] for member in order})
        self._fresh = not current
        self.current: Assignment = {**current, **{m: [] for m in order if m not in current}}
        self.owner = {partition: m for m, held in self.current.items() for partition in held}
        self._movements = Movements()

    def run(self) -> Assignment:
        """Return every member's partitions, in order."""
        candidates = self._candidates()
        unassigned, revoked = self._drop_what_may_not_stay(candidates)
        initializing = not any(self.current.values())
        for partition in unassigned:
            self._give(partition, min(self.takers[partition], key=self._load))
        fixed = {
            member: self.current.pop(member) for member in list(self.current) if not self._movable(member)
        }
        before = {member: list(held) for member, held in self.current.items()}
        if not revoked:
            self._reassign([p for p in unassigned if len(self.takers[p]) > 1])
        moved = self._reassign([p for p in candidates if len(self.takers[p]) > 1])
        if moved and not initializing and _score(self.current) >= _score(before):
            self.current = before
        return {member: sorted((self.current | fixed)[member]) for member in self._members}

    def _load(self, member: str) -> tuple[int, str]:
        return len(self.current[member]), member

    def _give(self, partition: TopicPartition, member: str) -> None:
        self.current[member].append(partition)
        self.owner[partition] = member

    # --- what there is to hand out -----------------------------------------------------------

    def _candidates(self) -> list[TopicPartition]:
        """Return all partitions in the order in which they are considered: first those that the fewest
        members may have.

        Where all members want the same and own something, first those of the busiest members, and of these
        first those that had another owner before.
        """
        scarce = sorted(self.takers, key=lambda p: (len(self.takers[p]), p))
        if self._fresh or not self._all_alike():
            return scarce
        held = {member: [p for p in own if p in self.takers] for member, own in self.current.items()}
        found: dict[TopicPartition, None] = {}
        while held:
            member = max(held, key=lambda m: (len(held[m]), m))
            if not held[member]:
                del held[member]
                continue
            moved_before = [p for p in held[member] if p in self.previous]
            partition = min(moved_before) if moved_before else held[member][-1]
            held[member].remove(partition)
            found[partition] = None
        return list(found | dict.fromkeys(scarce))

    def _all_alike(self) -> bool:
        return len({tuple(wanted) for wanted in self.wanted.values()}) <= 1

    def _drop_what_may_not_stay(
        self, candidates: Sequence[TopicPartition]
    ) -> tuple[list[TopicPartition], bool]:
        """Return the partitions without an owner, and whether one was taken from a member that left its
        topic.
        """
        revoked = False
        for member, held in self.current.items():
            for partition in [p for p in held if p not in self.wanted[member]]:
                held.remove(partition)
                del self.owner[partition]
                revoked |= partition in self.takers
        return [p for p in candidates if p not in self.owner], revoked

    # --- balance ---------------------------------------------------------------------------------

    def _movable(self, member: str) -> bool:
        """Return whether the member may get a partition, or give one away."""
        held = self.current[member]
        return len(held) < len(self.wanted[member]) or any(len(self.takers[p]) > 1 for p in held)

    def _reassign(self, candidates: Sequence[TopicPartition]) -> bool:
        """Move partitions until no move makes the assignment more even. Return whether any was moved."""
        moved = False
        while True:
            modified = False
            for partition in candidates:
                if self._even():
                    break
                target = self._better(partition)
                if target is not None:
                    self._move_or_swap_back(partition, target)
                    moved = modified = True
            if not modified:
                return moved

    def _better(self, partition: TopicPartition) -> str | None:
        """Return the member that shall have the partition instead: its owner before, or the least busy one;
        None where that gains nothing.
        """
        most = len(self.current[self.owner[partition]]) - 1
        before = self.previous.get(partition)
        if before is not None and before in self.takers[partition] and most > len(self.current[before]):
            return before
        least = min(self.takers[partition], key=self._load)
        return least if most > len(self.current[least]) else None

    def _even(self) -> bool:
        """Return whether no member could get a partition of a member that has more."""
        counts = {member: len(held) for member, held in self.current.items()}
        if min(counts.values()) >= max(counts.values()) - 1:
            return True
        return not any(
            counts[member] < counts[self.owner[partition]]
            for member in counts
            if counts[member] < len(self.wanted[member])
            for partition in self.wanted[member]
            if self.owner[partition] != member
        )

    def _move_or_swap_back(self, partition: TopicPartition, target: str) -> None:
        source = self.owner[partition]
        moving = self._movements.instead(partition, source, target)
        if self.owner[moving] != source:
            # Both partitions moved before in this rebalance: both go back, or `source` would stay too busy.
            self._move(partition, self.owner[moving])
        self._move(moving, target)

    def _move(self, partition: TopicPartition, target: str) -> None:
        source = self.owner[partition]
        self._movements.move(partition, source, target)
        self.current[source].remove(partition)
        self._give(partition, target)


def _score(assignment: Assignment) -> int:
    """Return 0 where all members have the same number of partitions; else the sum of all differences."""
    counts = sorted(map(len, assignment.values()))
    n = len(counts)
    return sum((2 * i - n + 1) * count for i, count in enumerate(counts))


# --- sticky ------------------------------------------------------------

_USER_DATA = "StickyAssignorUserData"
_VERSION_SIZE = 2
"""Bytes that kafka-python 3 writes before the schema, and Kafka does not."""

Claim = tuple[int, list[TopicPartition]]
"""The generation (-1: not known) and the partitions that a member says it got in it."""


class StickyAssignor:
    """Members give up all partitions before a rebalance, and tell the leader in their user data what they
    had.
    """

    name = "sticky"
    cooperative = False

    def assign(self, partitions: Partitions, members: Members) -> Assignment:
        claims = {member: decode_user_data(told.user_data) for member, told in members.items()}
        return Balancer(partitions, members, claims).run()

    def user_data(self, topics: Sequence[str], owned: Iterable[TopicPartition], generation: int) -> bytes:
        return encode_user_data(owned, generation)


def encode_user_data(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """Encode StickyAssignorUserData, version 1, whose schema has no version field."""
    kind, out = structs(_USER_DATA), bytearray()
    rows = [kind.TopicAssignment(topic=topic, partitions=held) for topic, held in by_topic(owned).items()]
    encode(kind(previous_assignment=rows, generation=generation), 1, out)
    return bytes(out)


def decode_user_data(data: bytes) -> Claim:
    """Decode what a member had; data that can't be read gives nothing (Kafka ignores it too)."""
    for begin in (0, _VERSION_SIZE):
        for version in (1, 0):
            try:
                body, end = decode_at(_USER_DATA, version, memoryview(data), begin, len(data))
            except ValueError:
                continue
            if end == len(data):
                rows = body.previous_assignment
                return body.generation, [TopicPartition(e.topic, n) for e in rows for n in e.partitions]
    return -1, []


# --- cooperative -------------------------------------------------------------------------------

# Cooperative sticky: the sticky assignment, but a partition that moves has no owner for one round (KIP-429;
# Kafka: CooperativeStickyAssignor.adjustAssignment).


class CooperativeStickyAssignor:
    """Members keep their partitions while the group rebalances. A partition that moves is given to nobody
    until its owner has given it up: the owner then joins again, and the next round gives the partition
    away.
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
        """Return no bytes: the owned partitions are in the subscription itself."""
        return b""


def _owners(members: Members) -> dict[TopicPartition, set[str]]:
    """Return which members still own each partition: of those that claim it, the ones of the latest
    generation.

    A member that missed a generation has lost its partitions.
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
