"""`Group`: Kafka's classic group protocol, as a state machine over members (Kafka: ClassicGroup,
GroupMetadataManager). It never waits: who has to gets a ticket.

Nothing on disk of its own: what must survive is handed to `write`. Threads: under the group's lock. Every
method takes `now`, ms of the monotonic clock.
"""

from __future__ import annotations

import itertools
import math
import uuid
from collections.abc import Callable, Mapping

from segstore.client.groups.member import Member
from segstore.client.groups.membership import Joined, JoinedMember, Joining, State, Ticket
from segstore.client.groups.roster import Roster
from segstore.errors import (
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)

Write = Callable[["Group", Mapping[str, bytes]], None]
"""Keeps the group and these assignments, by member id; raises where that fails."""

_WAITING = (State.PREPARING_REBALANCE, State.COMPLETING_REBALANCE)


class Group(Roster):
    """`delay_ms` is how long the first rebalance of an empty group waits for more members."""

    def __init__(self, group_id: str, write: Write, *, delay_ms: float = 0, max_size: int = 1 << 31) -> None:
        super().__init__(group_id)
        self._write, self._delay_ms, self._max_size = write, delay_ms, max_size
        self._deadline = math.inf
        self._delay_left = 0.0
        self._delayed = self._newcomer = False

    # --- joining -----------------------------------------------------------------------------

    def join(self, joining: Joining, now: float) -> Ticket[Joined]:
        """UnknownMemberIdError, FencedInstanceIdError, InconsistentGroupProtocolError,
        GroupMaxSizeReachedError.
        """
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
        return f"{joining.group_instance_id or joining.client_id}-{uuid.uuid4()}"

    def _enter(self, joining: Joining, now: float) -> Ticket[Joined]:
        member = Member(self._new_id(joining), joining, now)
        if not self.members:
            self.protocol_type = joining.protocol_type
        self.take_up(member)
        self.leader = self.leader or member.member_id
        self._newcomer = True
        return self._wait_for_all(member, now)

    def _rejoin(self, member: Member, joining: Joining, now: float) -> Ticket[Joined]:
        same = member.same(joining.protocols)
        completing = self.state is State.COMPLETING_REBALANCE and same
        stable = self.state is State.STABLE and same and member.member_id != self.leader
        member.update(joining, now)
        if completing or stable:
            ticket = Ticket[Joined](member.member_id)
            ticket.settle(self._place(member, told=completing))
            return ticket
        return self._wait_for_all(member, now)

    def _replace(self, joining: Joining, now: float) -> Ticket[Joined]:
        """A static member came back: it has a new id, and whoever had the old one is fenced."""
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
            return self._wait_for_all(member, now)
        self._write(self, {each.member_id: each.assignment for each in self.members.values()})
        ticket = Ticket[Joined](member.member_id)
        ticket.settle(self._place(member, told=True, skip_assignment=True))
        return ticket

    def _wait_for_all(self, member: Member, now: float) -> Ticket[Joined]:
        if member.joining is not None:
            member.joining.fail(RebalanceInProgressError(f"member {member.member_id} has joined once more"))
        ticket = member.joining = Ticket[Joined](member.member_id)
        if self.state is not State.PREPARING_REBALANCE:
            self._prepare(now)
        self._try_complete(now)
        return ticket

    def _place(self, member: Member, told: bool, skip_assignment: bool = False) -> Joined:
        assert self.protocol is not None
        assert self.leader is not None
        told = told and member.member_id == self.leader
        members = tuple(
            JoinedMember(each.member_id, each.group_instance_id, each.subscription(self.protocol))
            for each in self.members.values()
        )
        return Joined(
            member.member_id,
            self.generation,
            self.protocol,
            self.leader,
            members if told else (),
            skip_assignment and told,
        )

    # --- a rebalance -------------------------------------------------------------------------------

    def _prepare(self, now: float) -> None:
        """All have to join anew, within the longest of their rebalance timeouts."""
        if self.state is State.COMPLETING_REBALANCE:
            self._fail_syncs()
        timeout = self._timeout()
        first = self.state is State.EMPTY and self._delay_ms > 0
        self._delay_left = max(timeout - self._delay_ms, 0) if first else 0.0
        self._delayed, self._newcomer = first, False
        self._deadline = now + (min(self._delay_ms, timeout) if first else timeout)
        self._become(State.PREPARING_REBALANCE)

    def _timeout(self) -> float:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def _try_complete(self, now: float) -> None:
        waits = self.state is State.PREPARING_REBALANCE and not self._delayed
        if waits and all(member.joining is not None for member in self.members.values()):
            self._complete_join(now)

    def _join_is_due(self, now: float) -> None:
        if self._delayed and self._newcomer and self._delay_left > 0:
            # Others come yet: group.initial.rebalance.delay.ms begins anew, up to the rebalance timeout.
            delay = min(self._delay_ms, self._delay_left)
            self._delay_left, self._newcomer = max(self._delay_left - delay, 0), False
            self._deadline = now + delay
            return
        self._delayed = False
        self._complete_join(now)

    def _complete_join(self, now: float) -> None:
        """Who has not joined again is no member any more; static ones stay until their session ends."""
        for member in list(self.members.values()):
            if member.joining is None and member.group_instance_id is None:
                self._drop(member)
        there = [member.member_id for member in self.members.values() if member.joining is not None]
        if self.members and not there:
            self._deadline = now + self._timeout()
            return
        if there and self.leader not in there:
            self.leader = there[0]
        self._next_generation(now)

    def _next_generation(self, now: float) -> None:
        self.generation += 1
        self._deadline = math.inf
        if not self.members:
            self.protocol = self.leader = None
            self._become(State.EMPTY)
            self._write(self, {})
            return
        self.protocol = self.vote()
        self._deadline = now + self._timeout()
        self._become(State.COMPLETING_REBALANCE)
        for member in self.members.values():
            ticket, member.joining = member.joining, None
            member.synced = False
            member.beat(now)
            if ticket is not None:
                ticket.settle(self._place(member, told=True))

    # --- the assignment ------------------------------------------------------------------------------

    def sync(
        self,
        member_id: str,
        instance: str | None,
        generation: int,
        protocol: str,
        assignments: Mapping[str, bytes],
        now: float,
    ) -> Ticket[bytes]:
        """The leader brings the assignments, the others none. UnknownMemberIdError, IllegalGenerationError,
        RebalanceInProgressError, FencedInstanceIdError, InconsistentGroupProtocolError; what `write` raises:
        the leader may sync again.
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
        ticket = Ticket[bytes](member_id)
        if self.state is State.STABLE:
            ticket.settle(member.assignment)
            return ticket
        if member.syncing is not None:
            member.syncing.fail(self.in_progress())
        member.syncing = ticket
        if member_id == self.leader:
            self._assign({each: assignments.get(each, b"") for each in self.members}, now)
        return ticket

    def _assign(self, assignments: Mapping[str, bytes], now: float) -> None:
        self._write(self, assignments)
        self._become(State.STABLE)
        for member in self.members.values():
            member.assignment = assignments[member.member_id]
            ticket, member.syncing = member.syncing, None
            if ticket is not None:
                member.beat(now)
                ticket.settle(member.assignment)
        # Those who have not asked yet must, for else nobody works on what is theirs.
        unsynced = any(not member.synced for member in self.members.values())
        self._deadline = self._deadline if unsynced else math.inf

    def _fail_syncs(self) -> None:
        for member in self.members.values():
            ticket, member.syncing = member.syncing, None
            if ticket is not None:
                ticket.fail(self.in_progress())

    def _sync_is_due(self, now: float) -> None:
        late = [member for member in self.members.values() if not member.synced]
        self._deadline = math.inf
        for member in late:
            self._drop(member)
        if late:
            self._prepare(now)
            self._try_complete(now)

    # --- time and leaving ------------------------------------------------------------------------------

    def heartbeat(self, member_id: str, instance: str | None, generation: int, now: float) -> None:
        """UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError; RebalanceInProgressError: the
        member lives, and has to join again.
        """
        member = self.check_member(member_id, instance)
        self.check_generation(generation)
        member.beat(now)
        if self.state is State.PREPARING_REBALANCE:
            raise self.in_progress()

    def leave(self, member_id: str, instance: str | None, now: float) -> None:
        """UnknownMemberIdError, FencedInstanceIdError."""
        self._remove([self.check_member(member_id, instance)], now)

    def _remove(self, members: list[Member], now: float) -> None:
        for member in members:
            self._drop(member)
        if members and self.state is not State.PREPARING_REBALANCE:
            self._prepare(now)
        self._try_complete(now)

    def _drop(self, member: Member) -> None:
        del self.members[member.member_id]
        if self.instances.get(member.group_instance_id or "") == member.member_id:
            del self.instances[member.group_instance_id or ""]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)
        member.fail(UnknownMemberIdError(f"member {member.member_id} is no more in group {self.group_id!r}"))
        self.changes += 1

    def settle(self, now: float) -> None:
        """Let happen what is due."""
        late = [member for member in self.members.values() if not member.look(now)]
        self._remove(late + [m for m in self.members.values() if m.deadline <= now and m not in late], now)
        if self._deadline <= now:
            if self.state is State.PREPARING_REBALANCE:
                self._join_is_due(now)
            else:
                self._sync_is_due(now)

    def due(self) -> float:
        """When to `settle` next; inf: when somebody asks for something."""
        return min(itertools.chain([self._deadline], (member.due() for member in self.members.values())))

    def rebalance(self, now: float) -> None:
        """Begin a rebalance, unless one is under way."""
        if self.members and self.state not in _WAITING:
            self._prepare(now)

    def _become(self, state: State) -> None:
        self.state = state
        self.changes += 1
