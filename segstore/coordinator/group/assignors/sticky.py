"""The sticky assignor, whose assignment is as even as possible and moves few partitions; and the cooperative
sticky assignor, which moves a partition in two rounds.

Threads: any; each call of `assign` makes its own `Balancer`. The algorithm is the general algorithm of
Kafka's AbstractStickyAssignor (KIP-54), as in kafka-python. Ties are broken by name, so that every leader
computes the same assignment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from segstore.coordinator.group.assignors.base import Assignment, Members, Partitions
from segstore.coordinator.structs import TopicPartition, by_topic
from segstore.protocol.codec import decode_at, encode, structs

# --- claims ------------------------------------------------------------------------------------

# `resolve_owners` finds the owner of each partition. `Claims` maps a member's id to (generation, the
# partitions that the member reports to have owned in this generation). If several members report one
# partition, the member with the latest generation is its owner (Kafka:
# AbstractStickyAssignor.prepopulateCurrentAssignments).

Claims = Mapping[str, tuple[int, list[TopicPartition]]]


def resolve_owners(claims: Claims) -> tuple[dict[str, list[TopicPartition]], dict[TopicPartition, str]]:
    """Return (the partitions that each member owns, by member id; the previous owner of each partition that
    was also reported for an earlier generation).

    If several members report a partition for the same generation, only the first of these members counts.
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

# `Movements` records the partitions that the running call of `assign` has moved, because two members must not
# swap partitions of one topic (Kafka: AbstractStickyAssignor.PartitionMovements). Threads: one, within a call
# of `assign`.


class _Pair(NamedTuple):
    source: str
    target: str


class Movements:
    """Records the first owner and the current owner of each partition that was moved."""

    def __init__(self) -> None:
        self._pairs: dict[TopicPartition, _Pair] = {}
        self._moved: dict[tuple[str, _Pair], set[TopicPartition]] = {}

    def move(self, partition: TopicPartition, source: str, target: str) -> None:
        """Record the move of `partition` from `source` to `target`. If `target` was the first owner of
        `partition`, `partition` then counts as not moved.
        """
        before = self._pairs.pop(partition, None)
        if before is not None:
            self._moved[partition.topic, before].discard(partition)
            source = before.source
        if source != target:
            pair = self._pairs[partition] = _Pair(source, target)
            self._moved.setdefault((partition.topic, pair), set()).add(partition)

    def instead(self, partition: TopicPartition, source: str, target: str) -> TopicPartition:
        """Return the partition to move to `target` in place of `partition`: a partition of the same topic
        that was moved from `target` to the first owner of `partition`, so that it moves back. If there is no
        such partition, return `partition`.
        """
        before = self._pairs.get(partition)
        back = _Pair(target, before.source if before else source)
        return min(self._moved.get((partition.topic, back), ()), default=partition)


# --- balancer ----------------------------------------------------------------------------------

# `Balancer` computes one sticky assignment (Kafka: AbstractStickyAssignor.generalAssign, balance). Threads:
# one, within a call of `assign`.


class Balancer:
    """Computes one sticky assignment. `takers` maps each partition to the members that subscribe to the
    partition's topic; `wanted` maps each member to the partitions of the member's topics.
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
        self.owner = {partition: m for m, owned in self.current.items() for partition in owned}
        self._movements = Movements()

    def run(self) -> Assignment:
        """Return the partitions of every member, sorted."""
        candidates = self._candidates()
        unassigned, revoked = self._drop_unsubscribed(candidates)
        initializing = not any(self.current.values())
        for partition in unassigned:
            self._give(partition, min(self.takers[partition], key=self._load))
        fixed = {
            member: self.current.pop(member) for member in list(self.current) if not self._movable(member)
        }
        before = {member: list(owned) for member, owned in self.current.items()}
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

    # --- partitions to assign ---------------------------------------------------------------

    def _candidates(self) -> list[TopicPartition]:
        """Return all partitions in the order in which they are assigned: the partitions with the fewest
        subscribers come first.

        If all members subscribe to the same topics, and any partition has an owner, the order is another:
        partitions are taken one by one, each from the member that has most partitions left. Of this member's
        partitions, those that another member owned before are taken first. Partitions without an owner come
        last.
        """
        scarce = sorted(self.takers, key=lambda p: (len(self.takers[p]), p))
        if self._fresh or not self._all_alike():
            return scarce
        owned = {member: [p for p in own if p in self.takers] for member, own in self.current.items()}
        found: dict[TopicPartition, None] = {}
        while owned:
            member = max(owned, key=lambda m: (len(owned[m]), m))
            if not owned[member]:
                del owned[member]
                continue
            moved_before = [p for p in owned[member] if p in self.previous]
            partition = min(moved_before) if moved_before else owned[member][-1]
            owned[member].remove(partition)
            found[partition] = None
        return list(found | dict.fromkeys(scarce))

    def _all_alike(self) -> bool:
        return len({tuple(wanted) for wanted in self.wanted.values()}) <= 1

    def _drop_unsubscribed(self, candidates: Sequence[TopicPartition]) -> tuple[list[TopicPartition], bool]:
        """Take partitions from owners that do not subscribe to the partition's topic any more. Return
        (candidates without an owner, whether any partition that was taken has a subscriber).
        """
        revoked = False
        for member, owned in self.current.items():
            for partition in [p for p in owned if p not in self.wanted[member]]:
                owned.remove(partition)
                del self.owner[partition]
                revoked |= partition in self.takers
        return [p for p in candidates if p not in self.owner], revoked

    # --- balance ---------------------------------------------------------------------------------

    def _movable(self, member: str) -> bool:
        """Return whether the member could get another partition, or could give a partition to another
        subscriber.
        """
        owned = self.current[member]
        return len(owned) < len(self.wanted[member]) or any(len(self.takers[p]) > 1 for p in owned)

    def _reassign(self, candidates: Sequence[TopicPartition]) -> bool:
        """Move partitions until no move makes the assignment more even. Return whether a partition was
        moved.
        """
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
        """Return the member to which `partition` should move: it has at least two partitions fewer than the
        owner. Return None if the partition should stay.
        """
        most = len(self.current[self.owner[partition]]) - 1
        before = self.previous.get(partition)
        # The previous owner is preferred.
        if before is not None and before in self.takers[partition] and most > len(self.current[before]):
            return before
        least = min(self.takers[partition], key=self._load)
        return least if most > len(self.current[least]) else None

    def _even(self) -> bool:
        """Return True if the members' numbers of partitions differ by at most one, or if no member could get
        a partition from a member that has more partitions; else False.
        """
        counts = {member: len(owned) for member, owned in self.current.items()}
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
            # Two moves have the effect of one: `source` gives `partition` to the owner of `moving`, and this
            # owner gives `moving` to `target`.
            self._move(partition, self.owner[moving])
        self._move(moving, target)

    def _move(self, partition: TopicPartition, target: str) -> None:
        source = self.owner[partition]
        self._movements.move(partition, source, target)
        self.current[source].remove(partition)
        self._give(partition, target)


def _score(assignment: Assignment) -> int:
    """Return the imbalance of an assignment: the sum of the differences between the numbers of partitions of
    every two members.
    """
    counts = sorted(map(len, assignment.values()))
    n = len(counts)
    return sum((2 * i - n + 1) * count for i, count in enumerate(counts))


# --- sticky ------------------------------------------------------------

_USER_DATA = "StickyAssignorUserData"
_VERSION_SIZE = 2
"""Size of the version field. kafka-python 3 writes this field before the schema's fields; Kafka does not
write it.
"""

Claim = tuple[int, list[TopicPartition]]
"""(a member's generation, or -1 if it is not known; the partitions that the member reports to have owned in
this generation).
"""


class StickyAssignor:
    """The sticky assignor. Members revoke all partitions before a rebalance. As user data, they send the
    leader the partitions that they had until then.
    """

    name = "sticky"
    cooperative = False

    def assign(self, partitions: Partitions, members: Members) -> Assignment:
        claims = {
            member: decode_user_data(subscription.user_data) for member, subscription in members.items()
        }
        return Balancer(partitions, members, claims).run()

    def user_data(self, topics: Sequence[str], owned: Iterable[TopicPartition], generation: int) -> bytes:
        return encode_user_data(owned, generation)


def encode_user_data(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """Encode StickyAssignorUserData in version 1. The schema has no version field."""
    kind, out = structs(_USER_DATA), bytearray()
    rows = [
        kind.TopicAssignment(topic=topic, partitions=numbers) for topic, numbers in by_topic(owned).items()
    ]
    encode(kind(previous_assignment=rows, generation=generation), 1, out)
    return bytes(out)


def decode_user_data(data: bytes) -> Claim:
    """Return (generation, the member's partitions in this generation), or (-1, []) if the data can't be
    decoded, as in Kafka.
    """
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

# Cooperative sticky: the sticky assignment, in which a moving partition has no owner for one round (KIP-429;
# Kafka: CooperativeStickyAssignor.adjustAssignment).


class CooperativeStickyAssignor:
    """The cooperative sticky assignor: members keep their partitions during a rebalance. A moving partition
    is assigned to no member until its owner has revoked it. The owner then joins again, and in this next
    round the partition gets its new owner.
    """

    name = "cooperative-sticky"
    cooperative = True

    def assign(self, partitions: Partitions, members: Members) -> Assignment:
        claims = {
            member: (subscription.generation, list(subscription.owned))
            for member, subscription in members.items()
        }
        wanted = Balancer(partitions, members, claims).run()
        owners = _owners(members)
        return {
            member: [p for p in owned if owners.get(p, {member}) == {member}]
            for member, owned in wanted.items()
        }

    def user_data(self, topics: Sequence[str], owned: Iterable[TopicPartition], generation: int) -> bytes:
        """Return b"": the owned partitions are in the subscription itself."""
        return b""


def _owners(members: Members) -> dict[TopicPartition, set[str]]:
    """Return the current owners of each partition: among the members that report the partition, those with
    the latest generation.
    """
    latest: dict[TopicPartition, int] = {}
    owners: dict[TopicPartition, set[str]] = {}
    for member, subscription in members.items():
        for partition in subscription.owned:
            known = latest.get(partition, subscription.generation)
            if subscription.generation > known:
                owners[partition] = set()
            if subscription.generation >= known:
                latest[partition] = subscription.generation
                owners.setdefault(partition, set()).add(member)
    return owners
