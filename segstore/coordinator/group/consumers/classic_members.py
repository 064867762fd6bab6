"""`ClassicMembers`: a consumer group's members of the classic protocol. They join, sync and send heartbeats
as in a classic group, but the coordinator assigns their partitions (KIP-848, online migration; Kafka:
GroupMetadataManager.classicGroupJoinToConsumerGroup).

No member waits for other members: a join is answered at once. An error in the answer to a heartbeat asks the
member to join again. Threads: under the group's lock. `now` is ms of the monotonic clock in every method.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from segstore.coordinator.consumer_protocol import (
    PROTOCOL_TYPE,
    decode_subscription,
    encode_assignment,
    version_of,
)
from segstore.coordinator.group.assignors.base import MemberSubscription
from segstore.coordinator.group.classic.member import ClassicGroupMember, JoinGroupResult, Joining, Ticket
from segstore.coordinator.group.consumers.change import GroupDraft
from segstore.coordinator.group.consumers.keeper import Keeper
from segstore.coordinator.group.consumers.member import ConsumerMember
from segstore.coordinator.group.consumers.sessions import Wait
from segstore.coordinator.offsets.consumer_schema import ClassicMember, ConsumerMemberValue, MemberState
from segstore.errors import (
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidArgumentError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)


class ClassicMembers(Keeper):
    """The part of `ConsumerMembership` that handles members of the classic protocol."""

    # --- joining -----------------------------------------------------------------------------------

    def join(self, joining: Joining, now: float) -> Ticket[JoinGroupResult]:
        """Handle a JoinGroup request. Return a completed `Ticket` with the answer, whose generation is the
        member epoch. Partitions that the request does not list as owned count as revoked. Raises
        InconsistentGroupProtocolError, UnknownMemberIdError, FencedInstanceIdError, GroupMaxSizeReachedError,
        MemberIdRequiredError, and the errors of `Outside.write`.
        """
        joining = self._repeated(joining)
        decoded = self._subscription(joining)
        topics = self._outside.topics()
        draft, has_new_topics = self._draft(topics), topics is not self._seen
        before = self._entering(joining, draft)
        owned = topics.assignment(decoded.owned)
        after = draft.update(before, subscription(joining, decoded), owned, has_new_topics)
        self._commit(draft)
        # If the group has regular expressions, `_seen` keeps the old topics: the next KIP-848 heartbeat then
        # searches the new topics for matches.
        if not self.group.regexes:
            self._seen = topics
        self._await_sync(after, joining, now)
        ticket: Ticket[JoinGroupResult] = Ticket(after.member_id)
        ticket.complete(JoinGroupResult(after.member_id, after.epoch, joining.protocols[0][0], ""))
        return ticket

    def replaced(self, joining: Joining) -> ConsumerMember | None:
        """If `joining` is from a static member that replaces the group's last KIP-848 member, and the group
        can then become a classic group, return the KIP-848 member; else return None (GroupMetadataManager:
        validateOnlineDowngradeWithReplacedMember). Raises the errors of `join`.
        """
        instance = joining.group_instance_id
        before = None if instance is None or joining.member_id else self.group.static_member(instance)
        if before is None or before.is_classic or not self._is_classic_without([before.member_id], 1):
            return None
        self._subscription(joining)
        return before

    def _repeated(self, joining: Joining) -> Joining:
        """Return the request, with `new_id` as its member id if an earlier request with the same `new_id` has
        created the member.
        """
        known = not joining.member_id and joining.new_id in self.group.members
        return replace(joining, member_id=joining.new_id) if known else joining

    def _subscription(self, joining: Joining) -> MemberSubscription:
        """Return the subscription of a joining member, from the first of its protocols. Raises
        InconsistentGroupProtocolError if the group can't have a member with these protocols (ConsumerGroup:
        supportsClassicProtocols).
        """
        group_id, names = self.group.group_id, [name for name, _ in joining.protocols]
        common = self.group.classic_protocols()
        if joining.protocol_type != PROTOCOL_TYPE:
            raise InconsistentGroupProtocolError(
                f"group {group_id!r} is of type {PROTOCOL_TYPE!r}, not {joining.protocol_type!r}"
            )
        if not names or (common is not None and common.isdisjoint(names)):
            raise InconsistentGroupProtocolError(
                f"the members of group {group_id!r} that speak the classic protocol have "
                f"{sorted(common or ())} in common, and of the new one's {sorted(names)} none is among them"
            )
        try:
            return decode_subscription(joining.protocols[0][1], joining.group_instance_id)
        except InvalidArgumentError as error:
            raise InconsistentGroupProtocolError(f"group {group_id!r}: {error}") from None

    def _entering(self, joining: Joining, draft: GroupDraft) -> ConsumerMember:
        """Return the member in its state before the request, or a new member if the group does not have the
        member yet.
        """
        new_id, instance = joining.new_id or str(uuid.uuid4()), joining.group_instance_id
        if instance is None:
            if joining.needs_member_id and not joining.member_id:
                self._joining(new_id)
                raise MemberIdRequiredError(new_id)
            return self._joining(joining.member_id or new_id)
        if joining.member_id:
            return self._known(joining.member_id, instance)
        before = self.group.static_member(instance)
        return self._joining(new_id) if before is None else draft.replace_member(before, new_id)

    def _await_sync(self, member: ConsumerMember, joining: Joining, now: float) -> None:
        member_id = member.member_id
        self.pulses.pop(member_id, None)
        if joining.pulse is not None:
            self.pulses[member_id] = ClassicGroupMember(member_id, joining, now)
        self._extend(member, now)
        self._sessions.end(member_id, Wait.JOIN, Wait.REVOKE)
        self._sessions.await_until(member_id, Wait.SYNC, now + joining.rebalance_timeout_ms)

    # --- the assignment ----------------------------------------------------------------------------

    def sync(
        self,
        member_id: str,
        instance: str | None,
        generation: int,
        protocol: str | None,
        now: float,
        protocol_type: str | None = None,
    ) -> Ticket[bytes]:
        """Return a completed `Ticket` with the member's assignment. Raises UnknownMemberIdError,
        FencedInstanceIdError, IllegalGenerationError, InconsistentGroupProtocolError, and
        RebalanceInProgressError if the member has to join again.
        """
        member, classic = self._classic(member_id, instance, generation)
        first, encoded = classic.protocols[0]
        if protocol not in (None, first) or protocol_type not in (None, PROTOCOL_TYPE):
            raise InconsistentGroupProtocolError(
                f"member {member_id!r} of group {self.group.group_id!r} is of type {PROTOCOL_TYPE!r} and was "
                f"told {first!r}, not {protocol_type!r} and {protocol!r}"
            )
        is_late = self.group.epoch > member.epoch
        if is_late and member.current.state is not MemberState.UNREVOKED_PARTITIONS:
            raise self._must_join(member, now)
        self._sessions.end(member_id, Wait.SYNC)
        self._extend(member, now)
        ticket: Ticket[bytes] = Ticket(member_id)
        partitions = self._outside.topics().partitions(member.current.assigned)
        ticket.complete(encode_assignment(partitions, None, version_of(encoded)))
        return ticket

    # --- heartbeats ----------------------------------------------------------------------------------

    def classic_heartbeat(self, member_id: str, instance: str | None, generation: int, now: float) -> None:
        """Extend the member's session. Raises UnknownMemberIdError, FencedInstanceIdError,
        IllegalGenerationError, and RebalanceInProgressError if the member has to join again. It has to join
        again if the group has a later epoch, if the member must revoke partitions, or if partitions of its
        target have become free.
        """
        member, _ = self._classic(member_id, instance, generation)
        self._extend(member, now)
        state = member.current.state
        if (
            member.epoch < self.group.epoch
            or state is MemberState.UNREVOKED_PARTITIONS
            or (state is MemberState.UNRELEASED_PARTITIONS and not self.group.is_waiting(member))
        ):
            raise self._must_join(member, now)

    def _must_join(self, member: ConsumerMember, now: float) -> RebalanceInProgressError:
        """Set the deadline until which the member has to join again, unless this deadline is already set.
        Return the error that asks the member to do so.
        """
        timeout = member.subscription.rebalance_timeout_ms
        self._sessions.begin(member.member_id, Wait.JOIN, now + timeout)
        return RebalanceInProgressError(
            f"group {self.group.group_id!r} has other partitions for member {member.member_id!r}: it must "
            "join again"
        )

    def _classic(
        self, member_id: str, instance: str | None, generation: int
    ) -> tuple[ConsumerMember, ClassicMember]:
        """Return (member of the classic protocol, the `classic` field of the member's subscription). Raises
        UnknownMemberIdError, FencedInstanceIdError, IllegalGenerationError.
        """
        member = self._known(member_id, instance)
        classic = member.subscription.classic
        if classic is None:
            raise UnknownMemberIdError(
                f"member {member_id!r} of group {self.group.group_id!r} does not speak the classic protocol"
            )
        if generation != member.epoch:
            raise IllegalGenerationError(
                f"generation {generation} of member {member_id!r} of group {self.group.group_id!r} is over, "
                f"it is in {member.epoch}"
            )
        return member, classic


def subscription(joining: Joining, decoded: MemberSubscription) -> ConsumerMemberValue:
    """Return the record value that stores a classic member's subscription in a consumer group."""
    return ConsumerMemberValue(
        instance_id=joining.group_instance_id,
        rack_id=decoded.rack,
        client_id=joining.client_id,
        client_host=joining.client_host,
        topic_names=frozenset(decoded.topics),
        rebalance_timeout_ms=joining.rebalance_timeout_ms,
        classic=ClassicMember(joining.session_timeout_ms, joining.protocols),
    )
