"""`Group`: one consumer group's answers to its members, by Kafka's classic protocol (Kafka: ClassicGroup,
GroupMetadataManager).

On disk: what must survive is given to the function `write`. Threads: under the group's lock. `now` is ms of
the monotonic clock in every method.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from segstore.coordinator.group.member import Joined, Joining, Member, State, Ticket
from segstore.coordinator.group.rebalance import Rebalance, Roster
from segstore.errors import GroupMaxSizeReachedError, InconsistentGroupProtocolError

Write = Callable[["Group", Mapping[str, bytes]], None]
"""Writes the group with these assignments, by member id, to the log; raises where that fails."""

_WAITING = (State.PREPARING_REBALANCE, State.COMPLETING_REBALANCE)


class Group(Roster):
    """A group of consumers. The first rebalance of an empty group waits `delay_ms` for more members."""

    def __init__(self, group_id: str, write: Write, *, delay_ms: float = 0, max_size: int = 1 << 31) -> None:
        super().__init__(group_id)
        self._write, self._max_size = partial(write, self), max_size
        self._rebalance = Rebalance(self, self._write, delay_ms)

    # --- joining -----------------------------------------------------------------------------

    def join(self, joining: Joining, now: float) -> Ticket[Joined]:
        """Raises UnknownMemberIdError, FencedInstanceIdError, InconsistentGroupProtocolError,
        GroupMaxSizeReachedError.
        """
        if joining.new_id in self.members:
            joining = replace(joining, member_id=joining.new_id)
        self.check_protocols(joining)
        if joining.member_id:
            return self._rejoin(self.check_member(joining.member_id, joining.group_instance_id), joining, now)
        if joining.group_instance_id in self.instances:
            return self._replace(joining, now)
        self._check_size()
        return self._enter(joining, now)

    def _check_size(self) -> None:
        if len(self.members) >= self._max_size:
            raise GroupMaxSizeReachedError(
                f"group {self.group_id!r} has {len(self.members)} members, which is group.max.size"
            )

    def _new_id(self, joining: Joining) -> str:
        return joining.new_id or f"{joining.group_instance_id or joining.client_id}-{uuid.uuid4()}"

    def _enter(self, joining: Joining, now: float) -> Ticket[Joined]:
        member = Member(self._new_id(joining), joining, now)
        if not self.members:
            self.protocol_type = joining.protocol_type
        self.take_up(member)
        self.leader = self.leader or member.member_id
        self._rebalance.newcomer = True
        return self._rebalance.wait_for_all(member, now)

    def _rejoin(self, member: Member, joining: Joining, now: float) -> Ticket[Joined]:
        same = member.same(joining.protocols)
        completing = self.state is State.COMPLETING_REBALANCE and same
        stable = self.state is State.STABLE and same and member.member_id != self.leader
        member.update(joining, now)
        if completing or stable:
            ticket: Ticket[Joined] = Ticket(member.member_id)
            ticket.complete(self.place(member, told=completing))
            return ticket
        return self._rebalance.wait_for_all(member, now)

    def _replace(self, joining: Joining, now: float) -> Ticket[Joined]:
        """Let a static member that came back have its place under a new id; the member with the old id is
        fenced.
        """
        assert joining.group_instance_id is not None
        old = self.members.pop(self.instances[joining.group_instance_id])
        old.fail(self.fenced(joining.group_instance_id, old.member_id))
        member = Member(self._new_id(joining), joining, now)
        member.assignment = old.assignment
        self.take_up(member)
        if self.leader == old.member_id:
            self.leader = member.member_id
        self.changes += 1
        unchanged = (
            self.state is State.STABLE
            and self.protocol == self.vote()
            and old.wants(self.protocol) == member.wants(self.protocol)
        )
        if not unchanged:
            return self._rebalance.wait_for_all(member, now)
        self._write({each.member_id: each.assignment for each in self.members.values()})
        ticket: Ticket[Joined] = Ticket(member.member_id)
        ticket.complete(self.place(member, told=True, skip_assignment=True))
        return ticket

    # --- the assignment ------------------------------------------------------------------------

    def sync(
        self,
        member_id: str,
        instance: str | None,
        generation: int,
        protocol: str,
        assignments: Mapping[str, bytes],
        now: float,
    ) -> Ticket[bytes]:
        """Take the assignments that the leader brings, and give the member its own. Raises
        UnknownMemberIdError, IllegalGenerationError, RebalanceInProgressError, FencedInstanceIdError,
        InconsistentGroupProtocolError, and what `write` raises: the leader may sync again.
        """
        member = self.check_member(member_id, instance)
        self.check_generation(generation)
        if self.state is State.PREPARING_REBALANCE:
            raise self.in_progress()
        if protocol != self.protocol:
            raise InconsistentGroupProtocolError(
                f"group {self.group_id!r} has chosen {self.protocol!r}, not {protocol!r}"
            )
        member.beat(now)
        member.synced = True
        ticket: Ticket[bytes] = Ticket(member_id)
        if self.state is State.STABLE:
            ticket.complete(member.assignment)
            return ticket
        if member.syncing is not None:
            member.syncing.fail(self.in_progress())
        member.syncing = ticket
        if member_id == self.leader:
            self._rebalance.assign({each: assignments.get(each, b"") for each in self.members}, now)
        return ticket

    # --- time and leaving ------------------------------------------------------------------------

    def heartbeat(self, member_id: str, instance: str | None, generation: int, now: float) -> None:
        """Raises UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError;
        RebalanceInProgressError where the member has to join again, which extends its session all the same.
        """
        member = self.check_member(member_id, instance)
        self.check_generation(generation)
        member.beat(now)
        if self.state is State.PREPARING_REBALANCE:
            raise self.in_progress()

    def leave(self, member_id: str, instance: str | None, now: float) -> None:
        """Raises UnknownMemberIdError, FencedInstanceIdError."""
        self._rebalance.remove([self.check_member(member_id, instance)], now)

    def expire(self, now: float) -> None:
        """Remove members whose sessions have ended, and end a wait of the rebalance that is over."""
        late = [member for member in self.members.values() if not member.look(now)]
        late += [m for m in self.members.values() if m.deadline <= now and m not in late]
        self._rebalance.remove(late, now)
        self._rebalance.end_wait(now)

    def due(self) -> float:
        """Return when `expire` has something to do next; inf where only a request changes something."""
        members = (member.due() for member in self.members.values())
        return min(itertools.chain([self._rebalance.deadline], members))

    def rebalance(self, now: float) -> None:
        """Begin a rebalance, unless one is running."""
        if self.members and self.state not in _WAITING:
            self._rebalance.prepare(now)
