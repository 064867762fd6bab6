"""`Rebalance`: how a group gets from one generation to the next (Kafka: GroupMetadataManager, which has
DelayedJoin, InitialDelayedJoin and DelayedSync for it).

All members join anew, the leader brings the assignment, everybody asks for it. It never waits: who has to
gets a ticket. Nothing on disk of its own: what must survive is handed to `write`.
Threads: under the group's lock. `now` is ms of the monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from segstore.coordinator.group.member import Member
from segstore.coordinator.group.membership import Joined, State, Ticket
from segstore.coordinator.group.roster import Roster
from segstore.errors import RebalanceInProgressError

Write = Callable[[Mapping[str, bytes]], None]
"""Keeps the group with these assignments, by member id; raises where that fails."""


class Rebalance:
    """`delay_ms` is how long the first rebalance of an empty group waits for more members. `deadline` is how
    long it waits for those that there are, inf: it does not. `newcomer`: somebody has come since it was set.
    """

    def __init__(self, group: Roster, write: Write, delay_ms: float) -> None:
        self._group, self._write, self._delay_ms = group, write, delay_ms
        self.deadline = math.inf
        self._delay_left = 0.0
        self._delayed = self.newcomer = False

    # --- all join anew -----------------------------------------------------------------------

    def prepare(self, now: float) -> None:
        """All have to join anew, within the longest of their rebalance timeouts."""
        group = self._group
        if group.state is State.COMPLETING_REBALANCE:
            self._fail_syncs()
        timeout = group.rebalance_timeout_ms()
        first = group.state is State.EMPTY and self._delay_ms > 0
        self._delay_left = max(timeout - self._delay_ms, 0) if first else 0.0
        self._delayed, self.newcomer = first, False
        self.deadline = now + (min(self._delay_ms, timeout) if first else timeout)
        group.become(State.PREPARING_REBALANCE)

    def _fail_syncs(self) -> None:
        for member in self._group.members.values():
            ticket, member.syncing = member.syncing, None
            if ticket is not None:
                ticket.fail(self._group.in_progress())

    def wait_for_all(self, member: Member, now: float) -> Ticket[Joined]:
        """Its place, once all have joined."""
        if member.joining is not None:
            member.joining.fail(RebalanceInProgressError(f"member {member.member_id} has joined once more"))
        ticket: Ticket[Joined] = Ticket(member.member_id)
        member.joining = ticket
        if self._group.state is not State.PREPARING_REBALANCE:
            self.prepare(now)
        self._try_complete(now)
        return ticket

    def remove(self, members: list[Member], now: float) -> None:
        """Go on without them."""
        for member in members:
            self._group.drop(member)
        if members and self._group.state is not State.PREPARING_REBALANCE:
            self.prepare(now)
        self._try_complete(now)

    def _try_complete(self, now: float) -> None:
        waits = self._group.state is State.PREPARING_REBALANCE and not self._delayed
        if waits and all(member.joining is not None for member in self._group.members.values()):
            self._complete_join(now)

    def _complete_join(self, now: float) -> None:
        """Who has not joined again is no member any more; static ones stay until their session ends."""
        group = self._group
        for member in list(group.members.values()):
            if member.joining is None and member.group_instance_id is None:
                group.drop(member)
        there = [member.member_id for member in group.members.values() if member.joining is not None]
        if group.members and not there:
            self.deadline = now + group.rebalance_timeout_ms()
            return
        if there and group.leader not in there:
            group.leader = there[0]
        self._next_generation(now)

    def _next_generation(self, now: float) -> None:
        group = self._group
        group.generation += 1
        self.deadline = math.inf
        if not group.members:
            group.protocol = group.leader = None
            group.become(State.EMPTY)
            self._write({})
            return
        group.protocol = group.vote()
        self.deadline = now + group.rebalance_timeout_ms()
        group.become(State.COMPLETING_REBALANCE)
        for member in group.members.values():
            ticket, member.joining = member.joining, None
            member.synced = False
            member.beat(now)
            if ticket is not None:
                ticket.settle(group.place(member, told=True))

    # --- the assignment ------------------------------------------------------------------------

    def assign(self, assignments: Mapping[str, bytes], now: float) -> None:
        """The leader has brought it: one for each member. What `write` raises."""
        self._write(assignments)
        self._group.become(State.STABLE)
        members = self._group.members.values()
        for member in members:
            member.assignment = assignments[member.member_id]
            ticket, member.syncing = member.syncing, None
            if ticket is not None:
                member.beat(now)
                ticket.settle(member.assignment)
        # Those who have not asked yet must, for else nobody works on what is theirs.
        if all(member.synced for member in members):
            self.deadline = math.inf

    # --- time ------------------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Wait no longer for those that are late."""
        if self.deadline > now:
            return
        if self._group.state is State.PREPARING_REBALANCE:
            self._join_is_due(now)
        else:
            self._sync_is_due(now)

    def _join_is_due(self, now: float) -> None:
        if self._delayed and self.newcomer and self._delay_left > 0:
            # Others come yet: group.initial.rebalance.delay.ms begins anew, up to the rebalance timeout.
            delay = min(self._delay_ms, self._delay_left)
            self._delay_left, self.newcomer = max(self._delay_left - delay, 0), False
            self.deadline = now + delay
            return
        self._delayed = False
        self._complete_join(now)

    def _sync_is_due(self, now: float) -> None:
        late = [member for member in self._group.members.values() if not member.synced]
        self.deadline = math.inf
        for member in late:
            self._group.drop(member)
        if late:
            self.prepare(now)
            self._try_complete(now)
