"""`ClassicGroup`: one group of Kafka's classic protocol (Kafka: ClassicGroup, GroupMetadataManager).

On disk: the function `write` writes the group's record. Threads: under the group's lock. `now` is ms of the
monotonic clock in every method.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from segstore.coordinator.consumer_protocol import PROTOCOL_TYPE, decode_subscription
from segstore.coordinator.group.classic.member import (
    ClassicGroupMember,
    ClassicGroupState,
    GroupInfo,
    JoinGroupResult,
    Joining,
    Ticket,
)
from segstore.coordinator.group.classic.rebalance import Rebalance, Roster
from segstore.coordinator.structs import Leaver
from segstore.errors import (
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidArgumentError,
    MemberIdRequiredError,
    NonEmptyGroupError,
    SegstoreError,
    UnknownMemberIdError,
    copy_of,
)

Write = Callable[["ClassicGroup", Mapping[str, bytes]], None]
"""Writes the group's record with these assignments, by member id, to the log. Raises if the write fails."""

_WAITING = (ClassicGroupState.PREPARING_REBALANCE, ClassicGroupState.COMPLETING_REBALANCE)


class ClassicGroup(Roster):
    """A group of the classic protocol. A rebalance that begins with an empty group waits `delay_ms` for more
    members.
    """

    def __init__(self, group_id: str, write: Write, *, delay_ms: float = 0, max_size: int = 1 << 31) -> None:
        super().__init__(group_id)
        self._write, self._max_size = partial(write, self), max_size
        self._delay_ms = delay_ms
        self._rebalance = Rebalance(self, self._write, delay_ms)

    # --- joining -----------------------------------------------------------------------------

    def join(self, joining: Joining, now: float) -> Ticket[JoinGroupResult]:
        """Handle a JoinGroup request of a new member, or of a member that joins again. Return a `Ticket`,
        which is completed with the answer to the member. Raises UnknownMemberIdError, FencedInstanceIdError,
        InconsistentGroupProtocolError, GroupMaxSizeReachedError, and MemberIdRequiredError if the member must
        join again with the id in this error.
        """
        if joining.new_id in self.members:
            joining = replace(joining, member_id=joining.new_id)
        self.check_protocols(joining)
        if self.pending.pop(joining.member_id, None) is not None:
            return self._enter(replace(joining, new_id=joining.member_id), now)
        if joining.member_id:
            return self._rejoin(self.check_member(joining.member_id, joining.group_instance_id), joining, now)
        if joining.group_instance_id in self.instances:
            return self._replace(joining, now)
        self._check_size()
        if joining.needs_member_id and joining.group_instance_id is None:
            raise self._reserve(joining, now)
        return self._enter(joining, now)

    def _reserve(self, joining: Joining, now: float) -> MemberIdRequiredError:
        """Reserve an id for a new member (KIP-394) until the member's session timeout has passed. Return the
        error that has the id; the caller raises the error.
        """
        member_id = self._new_id(joining)
        self.pending[member_id] = now + joining.session_timeout_ms
        return MemberIdRequiredError(member_id)

    def _check_size(self) -> None:
        if len(self.members) >= self._max_size:
            raise GroupMaxSizeReachedError(
                f"group {self.group_id!r} has {len(self.members)} members, which is group.max.size"
            )

    def _new_id(self, joining: Joining) -> str:
        return joining.new_id or f"{joining.group_instance_id or joining.client_id}-{uuid.uuid4()}"

    def _enter(self, joining: Joining, now: float) -> Ticket[JoinGroupResult]:
        member = ClassicGroupMember(self._new_id(joining), joining, now)
        if not self.members:
            self.protocol_type = joining.protocol_type
            delay = joining.initial_delay_ms
            self._rebalance.delay_ms = self._delay_ms if delay is None else delay
        self.take_up(member)
        self.leader = self.leader or member.member_id
        self._rebalance.newcomer = True
        return self._rebalance.wait_for_all(member, now)

    def _rejoin(self, member: ClassicGroupMember, joining: Joining, now: float) -> Ticket[JoinGroupResult]:
        same = member.same(joining.protocols)
        completing = self.state is ClassicGroupState.COMPLETING_REBALANCE and same
        stable = self.state is ClassicGroupState.STABLE and same and member.member_id != self.leader
        member.update(joining, now)
        if completing or stable:
            ticket: Ticket[JoinGroupResult] = Ticket(member.member_id)
            ticket.complete(self.place(member, with_members=completing))
            return ticket
        return self._rebalance.wait_for_all(member, now)

    def _replace(self, joining: Joining, now: float) -> Ticket[JoinGroupResult]:
        """A static member has come back, and has sent no member id: give it a new member id, and fence its
        old member id. Return a `Ticket`, which is completed with the answer to the member.
        """
        assert joining.group_instance_id is not None
        old = self.members.pop(self.instances[joining.group_instance_id])
        old.fail(self.fenced(joining.group_instance_id, old.member_id))
        member = ClassicGroupMember(self._new_id(joining), joining, now)
        member.assignment = old.assignment
        self.take_up(member)
        if self.leader == old.member_id:
            self.leader = member.member_id
        self.changes += 1
        unchanged = (
            self.state is ClassicGroupState.STABLE
            and self.protocol == self.vote()
            and old.wants(self.protocol) == member.wants(self.protocol)
        )
        if not unchanged:
            return self._rebalance.wait_for_all(member, now)
        self._write({each.member_id: each.assignment for each in self.members.values()})
        ticket: Ticket[JoinGroupResult] = Ticket(member.member_id)
        place = self.place(member, with_members=True, skip_assignment=True)
        if place.skip_assignment and not joining.skips_assignment:
            # A client that does not support KIP-814 would compute a new assignment if the answer named it as
            # the leader.
            place = replace(place, leader=old.member_id, members=(), skip_assignment=False)
        ticket.complete(place)
        return ticket

    # --- the assignment ------------------------------------------------------------------------

    def sync(
        self,
        member_id: str,
        instance: str | None,
        generation: int,
        protocol: str | None,
        assignments: Mapping[str, bytes],
        now: float,
        protocol_type: str | None = None,
    ) -> Ticket[bytes]:
        """Return a `Ticket`, which is completed with the member's assignment. If the member is the leader,
        `assignments` has the assignments of all members, and is written. `protocol` and `protocol_type`
        must be the group's, or None. Raises UnknownMemberIdError, IllegalGenerationError,
        RebalanceInProgressError, FencedInstanceIdError, InconsistentGroupProtocolError, and the errors of
        `write`. If `write` fails, the leader may sync again.
        """
        member = self.check_member(member_id, instance)
        self.check_generation(generation)
        if self.state is ClassicGroupState.PREPARING_REBALANCE:
            raise self.in_progress()
        if protocol not in (None, self.protocol) or protocol_type not in (None, self.protocol_type):
            raise InconsistentGroupProtocolError(
                f"group {self.group_id!r} is of type {self.protocol_type!r} and has chosen "
                f"{self.protocol!r}, not {protocol_type!r} and {protocol!r}"
            )
        member.beat(now)
        member.synced = True
        ticket: Ticket[bytes] = Ticket(member_id)
        if self.state is ClassicGroupState.STABLE:
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
        """Extend the member's session. Raises UnknownMemberIdError, IllegalGenerationError,
        FencedInstanceIdError, and RebalanceInProgressError if the member has to join again.
        RebalanceInProgressError is raised after the session was extended.
        """
        member = self.check_member(member_id, instance)
        self.check_generation(generation)
        member.beat(now)
        if self.state is ClassicGroupState.PREPARING_REBALANCE:
            raise self.in_progress()

    def leave(self, member_id: str, instance: str | None, now: float) -> None:
        """Remove a member. Raises UnknownMemberIdError, FencedInstanceIdError."""
        self._rebalance.remove(self._leaving(member_id, instance), now)

    def leave_all(self, leaving: Iterable[Leaver], now: float) -> list[SegstoreError | None]:
        """Remove several members, and start one rebalance for all of them. Return one error or None for each
        member.
        """
        gone: list[ClassicGroupMember] = []
        errors: list[SegstoreError | None] = []
        for member_id, instance in leaving:
            try:
                gone += self._leaving(member_id, instance)
                errors.append(None)
            except (UnknownMemberIdError, FencedInstanceIdError) as error:
                errors.append(copy_of(error))
        self._rebalance.remove(list(dict.fromkeys(gone)), now)
        return errors

    def _leaving(self, member_id: str, instance: str | None) -> list[ClassicGroupMember]:
        """Return [the member to remove], or [] if `member_id` was only reserved; this reservation
        is dropped.
        """
        if self.pending.pop(member_id, None) is not None:
            return []
        # An administrator names a static member by its instance id alone (KIP-345).
        if not member_id and instance in self.instances:
            member_id = self.instances[instance]
        return [self.check_member(member_id, instance)]

    def expire(self, now: float) -> None:
        """Remove each reserved id and each member whose deadline has passed, and each dynamic member whose
        consumer polls too late or was garbage collected. If the deadline of the rebalance has passed, stop
        waiting for members.
        """
        for member_id in [each for each, deadline in self.pending.items() if deadline <= now]:
            del self.pending[member_id]
        late = [member for member in self.members.values() if not member.look(now)]
        late += [m for m in self.members.values() if m.deadline <= now and m not in late]
        self._rebalance.remove(late, now)
        self._rebalance.end_wait(now)

    def due(self) -> float:
        """Return the time at which `expire` must be called next; inf if the group does not change without a
        request.
        """
        members = (member.due() for member in self.members.values())
        return min(itertools.chain([self._rebalance.deadline], members, self.pending.values()))

    def info(self) -> GroupInfo:
        return GroupInfo(self.state, self.protocol_type or "", self.protocol or "", tuple(self.infos()))

    def subscribed(self) -> set[str]:
        """Return the topics that any member subscribes to (ClassicGroup.isSubscribedToTopic). Raises
        NonEmptyGroupError if the members are not consumers, because subscriptions of other clients list no
        topics.
        """
        if not self.members:
            return set()
        try:
            if self.protocol_type == PROTOCOL_TYPE:
                encoded = [subscription for m in self.members.values() for _, subscription in m.protocols]
                return {topic for each in encoded for topic in decode_subscription(each).topics}
        except InvalidArgumentError:
            """The subscriptions are not those of consumers."""
        raise NonEmptyGroupError(
            f"group {self.group_id!r} has {len(self.members)} members, whose topics are not known"
        )

    def rebalance(self, now: float) -> None:
        """Begin a rebalance, unless a rebalance is running or the group has no members."""
        if self.members and self.state not in _WAITING:
            self._rebalance.prepare(now)
