"""`Rebalance`: a group's change from one generation to the next (Kafka: GroupMetadataManager, with
DelayedJoin, InitialDelayedJoin and DelayedSync), and `Roster`, the members of a group.

All members join anew, the leader sends the assignments of all members, and every member asks for its own
assignment. No method waits: a member that has to wait gets a `Ticket`, which is completed later. On disk: the
function `write` writes the group's record.
Threads: under the group's lock. `now` is ms of the monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from segstore.coordinator.group.classic.member import (
    ClassicGroupMember,
    ClassicGroupState,
    JoinedMember,
    JoinGroupResult,
    Joining,
    MemberInfo,
    Ticket,
)
from segstore.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)

# --- roster ------------------------------------------------------------------------------------

# `Roster` has a group's members and generation, and checks the requests of members.


class Roster:
    """The members of a classic group: `members` maps member ids to members, `instances` maps a
    group_instance_id to the present member id. `pending` maps each id that was reserved for a joining member
    (KIP-394) to its deadline (ms, monotonic); no rebalance completes while an id is pending. The counter
    `changes` grows with each change of the group; a member then asks for its assignment again.
    `empty_since_ms` is the time when the last member left (ms since the epoch), or -1 if the group never had
    members.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state, self.generation, self.changes = ClassicGroupState.EMPTY, 0, 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicGroupMember] = {}
        self.instances: dict[str, str] = {}
        self.pending: dict[str, float] = {}
        self.empty_since_ms = -1

    def check_protocols(self, joining: Joining) -> None:
        """Raise InconsistentGroupProtocolError unless the joining member has the same protocol type as the
        other members, and supports a protocol that all of them support.
        """
        names = frozenset(name for name, _ in joining.protocols)
        if not names:
            raise InconsistentGroupProtocolError(f"a member of {self.group_id!r} must have a protocol")
        others = [
            member
            for member in self.members.values()
            if member.member_id != joining.member_id
            and (joining.group_instance_id is None or member.group_instance_id != joining.group_instance_id)
        ]
        if not others:
            return
        if joining.protocol_type != self.protocol_type:
            raise InconsistentGroupProtocolError(
                f"group {self.group_id!r} is of type {self.protocol_type!r}, not {joining.protocol_type!r}"
            )
        there = frozenset.intersection(*(member.names() for member in others))
        if not names & there:
            raise InconsistentGroupProtocolError(
                f"the members of group {self.group_id!r} have {sorted(there)} in common, "
                f"and of the new one's {sorted(names)} none is among them"
            )

    def vote(self) -> str:
        """Return a protocol that all members support: among these, the protocol that most members prefer
        (ClassicGroup.selectProtocol).
        """
        members = list(self.members.values())
        candidates = frozenset.intersection(*(member.names() for member in members))
        votes = [member.vote(candidates) for member in members]
        return max(dict.fromkeys(votes), key=votes.count)

    def check_member(self, member_id: str, instance: str | None) -> ClassicGroupMember:
        """Return the member with this id and group_instance_id. Raises UnknownMemberIdError,
        FencedInstanceIdError.
        """
        if instance is not None and instance in self.instances and self.instances[instance] != member_id:
            raise self.fenced(instance, member_id)
        member = self.members.get(member_id)
        if member is None or (instance is not None and member.group_instance_id != instance):
            raise UnknownMemberIdError(
                f"group {self.group_id!r} has no member {member_id!r}: it left, was taken for failed, or "
                "never joined"
            )
        return member

    def check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise IllegalGenerationError(
                f"generation {generation} of group {self.group_id!r} is over, it is in {self.generation}"
            )

    def check_commit(
        self, generation: int, member_id: str, instance: str | None, now: float, transactional: bool = False
    ) -> None:
        """Raise an error unless the member may commit offsets now (GroupMetadataManager:
        validateOffsetCommit). A commit without a member id is accepted if the group has no members, or if
        `transactional` is set. Raises UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError,
        RebalanceInProgressError.
        """
        if generation < 0 and not member_id and instance is None:
            if self.members and not transactional:
                raise UnknownMemberIdError(
                    f"group {self.group_id!r} has members, and only they commit: {sorted(self.members)}"
                )
            return
        member = self.check_member(member_id, instance)
        self.check_generation(generation)
        member.beat(now)
        if self.state is ClassicGroupState.COMPLETING_REBALANCE and not transactional:
            raise self.in_progress()

    def take_up(self, member: ClassicGroupMember) -> None:
        """Add a member."""
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.instances[member.group_instance_id] = member.member_id

    def drop(self, member: ClassicGroupMember) -> None:
        """Remove a member. If it waits for an answer, the answer is an error."""
        del self.members[member.member_id]
        if self.instances.get(member.group_instance_id or "") == member.member_id:
            del self.instances[member.group_instance_id or ""]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)
        member.fail(UnknownMemberIdError(f"member {member.member_id} is no more in group {self.group_id!r}"))
        self.changes += 1

    def become(self, state: ClassicGroupState) -> None:
        """Set the state, and add one to `changes`."""
        self.state = state
        self.changes += 1

    def place(
        self, member: ClassicGroupMember, with_members: bool, skip_assignment: bool = False
    ) -> JoinGroupResult:
        """Return the answer to a member that has joined this generation. Only the leader's answer, and only
        if `with_members`, has the list of members and `skip_assignment`.
        """
        assert self.protocol is not None
        assert self.leader is not None
        with_members = with_members and member.member_id == self.leader
        members = tuple(
            JoinedMember(each.member_id, each.group_instance_id, each.subscription(self.protocol))
            for each in self.members.values()
        )
        return JoinGroupResult(
            member.member_id,
            self.generation,
            self.protocol,
            self.leader,
            members if with_members else (),
            skip_assignment and with_members,
        )

    def rebalance_timeout_ms(self) -> float:
        """Return the longest of the members' rebalance timeouts; 0 if there are no members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def infos(self) -> list[MemberInfo]:
        return [member.info(self.protocol) for member in self.members.values()]

    def fenced(self, instance: str, member_id: str) -> FencedInstanceIdError:
        return FencedInstanceIdError(
            f"group_instance_id {instance!r} of group {self.group_id!r} is another's now, not {member_id!r}"
        )

    def in_progress(self) -> RebalanceInProgressError:
        return RebalanceInProgressError(f"group {self.group_id!r} is handing out its partitions anew")


# --- rebalance ------------------------------------------------------------

Write = Callable[[Mapping[str, bytes]], None]
"""Writes the group's record, with the assignments by member id, to the log. Raises if the write fails."""


class Rebalance:
    """The rebalance of a classic group. A rebalance that begins with an empty group waits `delay_ms` for more
    members; `ClassicGroup` may change `delay_ms`. `deadline` is the time until which the group waits for
    members to join or to sync, inf if the group waits for no member. `newcomer` is True if a new member has
    joined since the current delay began.
    """

    def __init__(self, group: Roster, write: Write, delay_ms: float) -> None:
        self._group, self._write, self.delay_ms = group, write, delay_ms
        self.deadline = math.inf
        self._delay_left = 0.0
        self._delayed = self.newcomer = False

    # --- all join anew -----------------------------------------------------------------------

    def prepare(self, now: float) -> None:
        """Start a rebalance: all members have to join anew, within the longest of their rebalance
        timeouts.
        """
        group = self._group
        if group.state is ClassicGroupState.COMPLETING_REBALANCE:
            self._fail_syncs()
        timeout = group.rebalance_timeout_ms()
        first = group.state is ClassicGroupState.EMPTY and self.delay_ms > 0
        self._delay_left = max(timeout - self.delay_ms, 0) if first else 0.0
        self._delayed, self.newcomer = first, False
        self.deadline = now + (min(self.delay_ms, timeout) if first else timeout)
        group.become(ClassicGroupState.PREPARING_REBALANCE)

    def _fail_syncs(self) -> None:
        for member in self._group.members.values():
            ticket, member.syncing = member.syncing, None
            if ticket is not None:
                ticket.fail(self._group.in_progress())

    def wait_for_all(self, member: ClassicGroupMember, now: float) -> Ticket[JoinGroupResult]:
        """Start a rebalance, unless a rebalance is running. Return a `Ticket`, which is completed with the
        answer to `member` when all members have joined.
        """
        if member.joining is not None:
            member.joining.fail(RebalanceInProgressError(f"member {member.member_id} has joined once more"))
        ticket: Ticket[JoinGroupResult] = Ticket(member.member_id)
        member.joining = ticket
        if self._group.state is not ClassicGroupState.PREPARING_REBALANCE:
            self.prepare(now)
        self._try_complete(now)
        return ticket

    def remove(self, members: list[ClassicGroupMember], now: float) -> None:
        """Remove these members. If there are any, the group rebalances without them."""
        for member in members:
            self._group.drop(member)
        if members and self._group.state is not ClassicGroupState.PREPARING_REBALANCE:
            self.prepare(now)
        self._try_complete(now)

    def _try_complete(self, now: float) -> None:
        waits = self._group.state is ClassicGroupState.PREPARING_REBALANCE and not self._delayed
        waits = waits and not self._group.pending
        if waits and all(member.joining is not None for member in self._group.members.values()):
            self._complete_join(now)

    def _complete_join(self, now: float) -> None:
        """Remove the dynamic members that have not joined again, then begin the next generation. Static
        members stay until their sessions expire. If only static members remain, and none of them has joined
        again, the group does not begin a generation: it waits once more for the longest rebalance timeout.
        """
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
            group.become(ClassicGroupState.EMPTY)
            self._write({})
            return
        group.protocol = group.vote()
        self.deadline = now + group.rebalance_timeout_ms()
        group.become(ClassicGroupState.COMPLETING_REBALANCE)
        for member in group.members.values():
            ticket, member.joining = member.joining, None
            member.synced = False
            member.beat(now)
            if ticket is not None:
                ticket.complete(group.place(member, with_members=True))

    # --- the assignment ------------------------------------------------------------------------

    def assign(self, assignments: Mapping[str, bytes], now: float) -> None:
        """Write the leader's assignments, one for each member, and complete the `Ticket` of each waiting
        member with its assignment. Raises the errors of `write`.
        """
        self._write(assignments)
        self._group.become(ClassicGroupState.STABLE)
        members = self._group.members.values()
        for member in members:
            member.assignment = assignments[member.member_id]
            ticket, member.syncing = member.syncing, None
            if ticket is not None:
                member.beat(now)
                ticket.complete(member.assignment)
        # If a member has not synced, the deadline stays: the member does not read its partitions, and so it
        # is removed at the deadline.
        if all(member.synced for member in members):
            self.deadline = math.inf

    # --- time ------------------------------------------------------------------------------------

    def end_wait(self, now: float) -> None:
        """If the deadline has passed, stop waiting for members."""
        if self.deadline > now:
            return
        if self._group.state is ClassicGroupState.PREPARING_REBALANCE:
            self._join_is_due(now)
        else:
            self._sync_is_due(now)

    def _join_is_due(self, now: float) -> None:
        if self._delayed and self.newcomer and self._delay_left > 0:
            # A member has joined during the delay, so more members may join: the delay begins again. All
            # delays together last at most as long as the rebalance timeout.
            delay = min(self.delay_ms, self._delay_left)
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
