"""`ConsumerMembership`: handles the heartbeats of a consumer group's KIP-848 members (Kafka:
GroupMetadataManager).

Threads: under the group's lock. `now` is ms of the monotonic clock in every method.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from segstore.coordinator.group.classic.member import Pulse
from segstore.coordinator.group.consumers.change import GroupDraft
from segstore.coordinator.group.consumers.classic_members import ClassicMembers
from segstore.coordinator.group.consumers.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
)
from segstore.coordinator.group.consumers.sessions import Wait
from segstore.coordinator.group.consumers.topics import MayDescribe
from segstore.coordinator.offsets.consumer_schema import Assignment, ConsumerMemberValue, MemberState
from segstore.coordinator.structs import Leaver
from segstore.errors import (
    FencedInstanceIdError,
    InvalidRequestError,
    SegstoreError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
    UnsupportedAssignorError,
    copy_of,
)


@dataclass(frozen=True, kw_only=True)
class ConsumerHeartbeat:
    """A heartbeat of a member (Kafka: ConsumerGroupHeartbeatRequest). None, or -1 for the timeout, means that
    the value has not changed. `epoch` is 0 if the member joins, -1 if it leaves, -2 if a static member leaves
    and will come back. `owned` has the partitions that the member owns; `rebalance_timeout_ms` is the time
    within which the member must revoke partitions. If `member_id` is empty, the group chooses the id of the
    new member. `may_describe` limits the topics that regular expressions match, and is None if the member may
    describe all topics. If there is a `pulse`, the member is a consumer in this process, its `client_host` is
    CLIENT_HOST, and the coordinator checks its pulse.
    """

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: Collection[str] | None = None
    topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Assignment | None = None
    client_id: str = ""
    client_host: str = ""
    may_describe: MayDescribe | None = None
    pulse: Pulse | None = None

    @property
    def is_full(self) -> bool:
        """Return whether the heartbeat has the timeout, the topics and the owned partitions. A client sends
        all three after an error, because it may have missed an answer.
        """
        is_subscribed = self.topic_names is not None or self.topic_regex is not None
        return self.rebalance_timeout_ms != -1 and is_subscribed and self.owned is not None

    def merged(self, before: ConsumerMemberValue) -> ConsumerMemberValue:
        """Return the member's subscription, with the values of this heartbeat in place of earlier values."""
        names = self.topic_names
        return ConsumerMemberValue(
            _new(self.instance_id, before.instance_id),
            _new(self.rack_id, before.rack_id),
            self.client_id,
            self.client_host,
            before.topic_names if names is None else frozenset(names),
            _new(self.topic_regex, before.topic_regex),
            before.rebalance_timeout_ms if self.rebalance_timeout_ms == -1 else self.rebalance_timeout_ms,
            _new(self.server_assignor, before.server_assignor),
        )


def _new(value: str | None, before: str | None) -> str | None:
    return before if value is None else value


class Beaten(NamedTuple):
    """The answer to a heartbeat; `assignment` is None if the assignment has not changed."""

    member_id: str
    epoch: int
    heartbeat_interval_ms: int
    assignment: Assignment | None = None


class ConsumerMembership(ClassicMembers):
    """The members of a consumer group: KIP-848 members and members of the classic protocol."""

    def heartbeat(self, request: ConsumerHeartbeat, now: float) -> Beaten:
        """Handle a heartbeat, and return the member's epoch and assignment. Raises InvalidRequestError,
        UnsupportedAssignorError, InvalidRegularExpressionError, UnknownMemberIdError, FencedMemberEpochError,
        FencedInstanceIdError, UnreleasedInstanceIdError, GroupMaxSizeReachedError, and the errors of
        `Outside.write`.
        """
        self.check(request)
        if request.epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(request)
        topics = self._outside.topics()
        draft = self._draft(topics)
        has_new_topics = topics is not self._seen
        member = self._requester(request, draft)
        subscription = request.merged(member.subscription)
        after = draft.update(member, subscription, request.owned, has_new_topics, request.may_describe)
        self._commit(draft)
        self._seen = topics
        self._beat(member, after, now)
        if request.pulse is None:
            self.consumer_pulses.forget(after.member_id)
        else:
            self.consumer_pulses.attend(after.member_id, request.pulse, now)
        has_changed = after.current.assigned != member.current.assigned
        sends_assignment = request.epoch == JOIN_EPOCH or request.is_full or has_changed
        interval = self._outside.timing().heartbeat_interval_ms
        assignment = after.current.assigned if sends_assignment else None
        return Beaten(after.member_id, after.epoch, interval, assignment)

    def check(self, request: ConsumerHeartbeat) -> None:
        """Raise an error unless the heartbeat's values are valid (GroupCoordinatorService:
        throwIfConsumerGroupHeartbeatRequestIsInvalid). Raises InvalidRequestError, UnsupportedAssignorError.
        """
        epoch = request.epoch
        if epoch < STATIC_LEAVE_EPOCH:
            raise InvalidRequestError(f"member_epoch={epoch}: must be at least {STATIC_LEAVE_EPOCH}")
        if not request.member_id and epoch != JOIN_EPOCH:
            raise InvalidRequestError("member_id must not be empty but to join")
        for name, text in (("instance_id", request.instance_id), ("rack_id", request.rack_id)):
            if text is not None and not text.strip():
                raise InvalidRequestError(f"{name} must not be empty")
        if epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
            raise InvalidRequestError("instance_id must be given to leave as a static member")
        if epoch == JOIN_EPOCH:
            _check_joining(request)
        if request.server_assignor is not None and request.server_assignor not in self._assignors.known:
            raise UnsupportedAssignorError(
                f"server_assignor={request.server_assignor!r:.80}: allowed are "
                f"{', '.join(self._assignors.known)}"
            )

    def _requester(self, request: ConsumerHeartbeat, draft: GroupDraft) -> ConsumerMember:
        """Return the member in its state before the heartbeat. If it joins, and the group has no such member,
        return a new member.
        """
        member_id = request.member_id or str(uuid.uuid4())
        if request.instance_id is not None:
            return self._static(request, request.instance_id, member_id, draft)
        if request.epoch == JOIN_EPOCH:
            return self._joining(member_id)
        member = self.group.member(member_id)
        member.check_epoch(request.epoch, request.owned)
        return member

    def _static(
        self, request: ConsumerHeartbeat, instance_id: str, member_id: str, draft: GroupDraft
    ) -> ConsumerMember:
        before = self.group.static_member(instance_id)
        if request.epoch != JOIN_EPOCH:
            member = self._known(member_id, instance_id)
            member.check_epoch(request.epoch, request.owned)
            return member
        if before is None:
            return self._joining(member_id)
        if before.member_id == member_id and before.epoch != STATIC_LEAVE_EPOCH:
            return before
        if before.epoch != STATIC_LEAVE_EPOCH and not before.is_classic:
            raise UnreleasedInstanceIdError(
                f"instance id {instance_id!r} of group {self.group.group_id!r} is member "
                f"{before.member_id!r}'s, which has not left"
            )
        return draft.replace_member(before, member_id)

    # --- leaving -----------------------------------------------------------------------------------

    def _leave(self, request: ConsumerHeartbeat) -> Beaten:
        member = self._known(request.member_id, request.instance_id)
        if request.epoch == STATIC_LEAVE_EPOCH:
            self._leave_for_a_while(member)
        else:
            self._fence([member.member_id])
        self.consumer_pulses.forget(member.member_id)
        return Beaten(request.member_id, request.epoch, 0)

    def leave_all(self, leaving: Iterable[Leaver]) -> list[SegstoreError | None]:
        """Remove several members at an administrator's request; return one error or None for each member. A
        static member may be named by its instance id alone (KIP-345).
        """
        gone: dict[str, None] = {}
        errors: list[SegstoreError | None] = []
        for member_id, instance in leaving:
            try:
                gone[self._leaving(member_id, instance)] = None
                errors.append(None)
            except (UnknownMemberIdError, FencedInstanceIdError) as error:
                errors.append(copy_of(error))
        self._fence(list(gone))
        return errors

    def _leaving(self, member_id: str, instance: str | None) -> str:
        if instance is None:
            return self.group.member(member_id).member_id
        current_id = self.group.instances.get(instance, "")
        return self._known(member_id or current_id, instance).member_id

    def _beat(self, before: ConsumerMember, after: ConsumerMember, now: float) -> None:
        member_id, timeout = after.member_id, after.subscription.rebalance_timeout_ms
        if before.is_classic:  # the classic member has changed to KIP-848, or a KIP-848 member replaced it
            self._sessions.end(member_id, Wait.JOIN, Wait.SYNC)
        self._extend(after, now)
        if after.current == before.current and not before.is_classic:
            return
        if after.current.state is MemberState.UNREVOKED_PARTITIONS:
            self._sessions.await_until(member_id, Wait.REVOKE, now + timeout)
        else:
            self._sessions.end(member_id, Wait.REVOKE)


def _check_joining(request: ConsumerHeartbeat) -> None:
    if request.rebalance_timeout_ms == -1:
        raise InvalidRequestError("rebalance_timeout_ms must be given to join")
    if request.owned is None or request.owned:
        raise InvalidRequestError("topic_partitions must be empty to join")
    if request.topic_names is None and request.topic_regex is None:
        raise InvalidRequestError("subscribed_topic_names or subscribed_topic_regex must be given to join")
