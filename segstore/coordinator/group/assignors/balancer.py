"""One sticky assignment in the making. Nothing on disk. Threads: one, within a call of `assign`.

(Kafka: AbstractStickyAssignor.generalAssign, balance.)
"""

from __future__ import annotations

from collections.abc import Sequence

from segstore.coordinator.group.assignors.base import Assignment, Members, Partitions
from segstore.coordinator.group.assignors.claims import Claims, settle
from segstore.coordinator.group.assignors.movements import Movements
from segstore.coordinator.structs import TopicPartition


class Balancer:
    """`takers`: of each partition, who may have it; `wanted`: of each member, what it may have."""

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
        current, self.previous = settle({member: claims[member] for member in order})
        self._fresh = not current
        self.current: Assignment = {**current, **{m: [] for m in order if m not in current}}
        self.owner = {partition: m for m, held in self.current.items() for partition in held}
        self._movements = Movements()

    def run(self) -> Assignment:
        """Every member's partitions, in order."""
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
        """All partitions in the order in which they are looked at: those first that the fewest may have.

        Where all members want the same and have something, those first that the busiest have, of these
        those that had another owner before.
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
        """The partitions that nobody has then; whether one was taken from a member that left its topic."""
        revoked = False
        for member, held in self.current.items():
            for partition in [p for p in held if p not in self.wanted[member]]:
                held.remove(partition)
                del self.owner[partition]
                revoked |= partition in self.takers
        return [p for p in candidates if p not in self.owner], revoked

    # --- balance ---------------------------------------------------------------------------------

    def _movable(self, member: str) -> bool:
        """Whether it may get more, or give one away."""
        held = self.current[member]
        return len(held) < len(self.wanted[member]) or any(len(self.takers[p]) > 1 for p in held)

    def _reassign(self, candidates: Sequence[TopicPartition]) -> bool:
        """Move partitions until that would not make it more even. Whether one was moved."""
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
        """Who shall have it instead: its owner before, or the least busy; None where that gains nothing."""
        most = len(self.current[self.owner[partition]]) - 1
        before = self.previous.get(partition)
        if before is not None and before in self.takers[partition] and most > len(self.current[before]):
            return before
        least = min(self.takers[partition], key=self._load)
        return least if most > len(self.current[least]) else None

    def _even(self) -> bool:
        """Whether nobody could get a partition of somebody who has more."""
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
            # Both moved before in this rebalance: both go back, or `source` would stay too busy.
            self._move(partition, self.owner[moving])
        self._move(moving, target)

    def _move(self, partition: TopicPartition, target: str) -> None:
        source = self.owner[partition]
        self._movements.move(partition, source, target)
        self.current[source].remove(partition)
        self._give(partition, target)


def _score(assignment: Assignment) -> int:
    """0 where all have the same number; else the sum of all differences."""
    counts = sorted(map(len, assignment.values()))
    n = len(counts)
    return sum((2 * i - n + 1) * count for i, count in enumerate(counts))
