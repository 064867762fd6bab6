"""`ConsumerMember`: a member of a consumer group (KIP-848), and its steps from the current to the target
assignment (Kafka: ConsumerGroupMember, CurrentAssignmentBuilder).

Threads: any; members are immutable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from segstore.coordinator.offsets.consumer_schema import (
    NOTHING,
    Assignment,
    ConsumerMemberValue,
    Current,
    MemberState,
)
from segstore.errors import FencedMemberEpochError

JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
"""The epochs by which a member joins, leaves for good, and leaves as a static member that will come back
(Kafka: ConsumerGroupHeartbeatRequest).
"""
NO_SUBSCRIPTION, UNASSIGNED = ConsumerMemberValue(), Current()
"""The subscription and the assignment of a member that has just been created."""
IsOwned = Callable[[bytes, int], bool]
"""Returns whether any member owns the partition. A member owns a partition until it has revoked the
partition.
"""


@dataclass(frozen=True)
class ConsumerMember:
    """A member of a consumer group, with its subscription and its current assignment."""

    member_id: str
    subscription: ConsumerMemberValue = NO_SUBSCRIPTION
    current: Current = UNASSIGNED

    @property
    def epoch(self) -> int:
        return self.current.epoch

    @property
    def is_classic(self) -> bool:
        """Return whether the member speaks the classic protocol."""
        return self.subscription.classic is not None

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Return whether the member's assignment is its target assignment of this epoch."""
        return self.current.state is MemberState.STABLE and self.epoch == target_epoch

    def check_epoch(self, epoch: int, owned: Assignment | None) -> None:
        """Raise FencedMemberEpochError unless the member may send this epoch. The previous epoch is accepted
        if `owned` has only partitions that are assigned to the member: the last answer to the member may have
        been lost. Epoch 0 is always accepted, because a member that joins anew has revoked all partitions
        (KAFKA-19233).
        """
        if epoch == JOIN_EPOCH or epoch == self.epoch:
            return
        is_lost_answer = epoch == self.current.previous_epoch and _is_part(owned, self.current.assigned)
        if epoch > self.epoch or not is_lost_answer:
            raise FencedMemberEpochError(
                f"member {self.member_id!r} comes with epoch {epoch}, and has {self.epoch}: it must give up "
                "all its partitions, and join again"
            )

    def has_had(self, partitions: Assignment, epoch: int) -> bool:
        """Return whether the member has owned all these partitions since `epoch`, without a break
        (KIP-1251).
        """
        found = (
            self.current.assigned_in(topic, each) for topic, numbers in partitions.items() for each in numbers
        )
        return all(since is not None and since <= epoch for since in found)

    # --- reconciliation ------------------------------------------------------------------------

    def reconciled(
        self, target_epoch: int, target: Assignment, owned: Assignment | None, is_owned: IsOwned
    ) -> ConsumerMember:
        """Return the member after its next step towards the target assignment. `owned` is the list of
        partitions that the member reports, None if the heartbeat has no list. Raises FencedMemberEpochError
        if a newer Kafka wrote the member's state, which is then unknown, unless `owned` is an empty list.
        """
        state, current = self.current.state, self.current
        if self.is_reconciled_to(target_epoch):
            return self
        if state is MemberState.UNREVOKED_PARTITIONS:
            if _overlaps(owned, current.revoking):
                return self
            return self._next(current.epoch + 1, target_epoch, target, owned, is_owned)
        if state is MemberState.UNKNOWN:
            if owned is None or owned:
                raise FencedMemberEpochError(
                    f"member {self.member_id!r} is in a state that is not known: it must give up all its "
                    "partitions, and join again"
                )
            return self._next(target_epoch, target_epoch, target, owned, is_owned)
        return self._next(current.epoch, target_epoch, target, owned, is_owned)

    def _next(
        self, epoch: int, target_epoch: int, target: Assignment, owned: Assignment | None, is_owned: IsOwned
    ) -> ConsumerMember:
        """Return the member in its next state. If the member owns partitions that are not in its target, it
        must revoke them, and stays in `epoch`. If all its partitions are in its target, it enters
        `target_epoch`, and gets the partitions of its target that nobody owns.
        """
        had = self.current.assigned
        kept = _common(had, target)
        revoking = _without(had, kept)
        if revoking and _overlaps(owned, revoking):
            return self._in(epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
        wanted = _without(target, kept)
        free = {
            topic: frozenset(number for number in numbers if not is_owned(topic, number))
            for topic, numbers in wanted.items()
        }
        is_waiting = any(len(free[topic]) < len(numbers) for topic, numbers in wanted.items())
        state = MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE
        return self._in(target_epoch, state, _union(kept, free))

    def _in(
        self, epoch: int, state: MemberState, assigned: Assignment, revoking: Assignment = NOTHING
    ) -> ConsumerMember:
        """Return the member with this epoch, state and assignment, and with this epoch as the assignment
        epoch of partitions that are new to the member.
        """
        since = {
            topic: {number: self._since(topic, number, epoch) for number in numbers}
            for topic, numbers in _union(assigned, revoking).items()
        }
        return replace(self, current=Current(epoch, self.epoch, state, assigned, revoking, since))

    def _since(self, topic: bytes, number: int, epoch: int) -> int:
        has = number in self.current.assigned.get(topic, ())
        return (self.current.assigned_in(topic, number) or 0) if has else epoch

    def left_for_a_while(self) -> ConsumerMember:
        """Return the static member as one that has left for a while: it keeps its assignment, and its epoch
        is -2. The assignment epoch of each partition becomes 0: the member comes back with epoch 0, and may
        then commit with any epoch.
        """
        since = {topic: dict.fromkeys(numbers, 0) for topic, numbers in self.current.assigned.items()}
        current = self.current._replace(epoch=STATIC_LEAVE_EPOCH, revoking=NOTHING, since=since)
        return replace(self, current=current)

    def replaced_by(self, member_id: str) -> ConsumerMember:
        """Return the static member with its new id, under which it has come back."""
        return replace(self, member_id=member_id, current=self.current._replace(epoch=0, previous_epoch=0))


# --- assignments ---------------------------------------------------------------------------------


def _common(one: Assignment, other: Assignment) -> Assignment:
    found = {topic: numbers & other[topic] for topic, numbers in one.items() if topic in other}
    return {topic: numbers for topic, numbers in found.items() if numbers}


def _without(one: Assignment, other: Assignment) -> Assignment:
    found = {topic: numbers - other.get(topic, frozenset()) for topic, numbers in one.items()}
    return {topic: numbers for topic, numbers in found.items() if numbers}


def _union(one: Assignment, other: Assignment) -> Assignment:
    found = {topic: one.get(topic, frozenset()) | other.get(topic, frozenset()) for topic in {*one, *other}}
    return {topic: numbers for topic, numbers in found.items() if numbers}


def _overlaps(owned: Assignment | None, revoking: Assignment) -> bool:
    """Return whether `owned` is None or has a partition of `revoking`: the member may then still own a
    partition of `revoking`.
    """
    return owned is None or bool(_common(owned, revoking))


def _is_part(owned: Assignment | None, assigned: Assignment) -> bool:
    return owned is not None and not _without(owned, assigned)
