"""`ConsumerMembership`: a consumer group's answers to its members of KIP-848 (Kafka: GroupMetadataManager).

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
    """What a member says (Kafka: ConsumerGroupHeartbeatRequest). None, and a timeout of -1, stand for what
    has not changed since it said it last. `epoch` is 0 to join, -1 to leave, -2 to leave as a static member
    that comes back. `owned` are the partitions that the member has; `rebalance_timeout_ms` is how long it may
    take to give some up. An empty `member_id` leaves the id of a new member to the group. `may_describe`, by
    which topics of regular expressions are judged, is None where the member may describe all. A member with a
    `pulse` is a consumer in this process, whose `client_host` is CLIENT_HOST: the coordinator sees by itself
    whether it lives.
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
        """Return whether the member says all of itself, as it does after an error: it may have missed an
        answer.
        """
        is_subscribed = self.topic_names is not None or self.topic_regex is not None
        return self.rebalance_timeout_ms != -1 and is_subscribed and self.owned is not None

    def told(self, before: ConsumerMemberValue) -> ConsumerMemberValue:
        """Return what is known of the member now."""
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


def _new(told: str | None, before: str | None) -> str | None:
    return before if told is None else told


class Beaten(NamedTuple):
    """The group's answer: `assignment` is None where the member knows it."""

    member_id: str
    epoch: int
    heartbeat_interval_ms: int
    assignment: Assignment | None = None


class ConsumerMembership(ClassicMembers):
    """The members of a group, of both protocols."""

    def heartbeat(self, asked: ConsumerHeartbeat, now: float) -> Beaten:
        """Raises InvalidRequestError, UnsupportedAssignorError, InvalidRegularExpressionError,
        UnknownMemberIdError, FencedMemberEpochError, FencedInstanceIdError, UnreleasedInstanceIdError,
        GroupMaxSizeReachedError, and what `write` raises.
        """
        self.check(asked)
        if asked.epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(asked)
        topics = self._outside.topics()
        draft = self._draft(topics)
        has_new_topics = topics is not self._seen
        member = self._asking(asked, draft)
        told = asked.told(member.subscription)
        after = draft.update(member, told, asked.owned, has_new_topics, asked.may_describe)
        self._commit(draft)
        self._seen = topics
        self._beat(member, after, now)
        if asked.pulse is None:
            self.consumer_pulses.forget(after.member_id)
        else:
            self.consumer_pulses.attend(after.member_id, asked.pulse, now)
        has_changed = after.current.assigned != member.current.assigned
        is_told = asked.epoch == JOIN_EPOCH or asked.is_full or has_changed
        interval = self._outside.timing().heartbeat_interval_ms
        return Beaten(after.member_id, after.epoch, interval, after.current.assigned if is_told else None)

    def check(self, asked: ConsumerHeartbeat) -> None:
        """Raise unless what a member says can be meant (GroupCoordinatorService:
        throwIfConsumerGroupHeartbeatRequestIsInvalid). Raises InvalidRequestError, UnsupportedAssignorError.
        """
        epoch = asked.epoch
        if epoch < STATIC_LEAVE_EPOCH:
            raise InvalidRequestError(f"member_epoch={epoch}: must be at least {STATIC_LEAVE_EPOCH}")
        if not asked.member_id and epoch != JOIN_EPOCH:
            raise InvalidRequestError("member_id must not be empty but to join")
        for name, text in (("instance_id", asked.instance_id), ("rack_id", asked.rack_id)):
            if text is not None and not text.strip():
                raise InvalidRequestError(f"{name} must not be empty")
        if epoch == STATIC_LEAVE_EPOCH and asked.instance_id is None:
            raise InvalidRequestError("instance_id must be given to leave as a static member")
        if epoch == JOIN_EPOCH:
            _check_joining(asked)
        if asked.server_assignor is not None and asked.server_assignor not in self._assignors.known:
            raise UnsupportedAssignorError(
                f"server_assignor={asked.server_assignor!r:.80}: allowed are "
                f"{', '.join(self._assignors.known)}"
            )

    def _asking(self, asked: ConsumerHeartbeat, draft: GroupDraft) -> ConsumerMember:
        """Return the member that asks, as it was; a new one where it joins."""
        member_id = asked.member_id or str(uuid.uuid4())
        if asked.instance_id is not None:
            return self._static(asked, asked.instance_id, member_id, draft)
        if asked.epoch == JOIN_EPOCH:
            return self._joining(member_id)
        member = self.group.member(member_id)
        member.check_epoch(asked.epoch, asked.owned)
        return member

    def _static(
        self, asked: ConsumerHeartbeat, instance_id: str, member_id: str, draft: GroupDraft
    ) -> ConsumerMember:
        before = self.group.static_member(instance_id)
        if asked.epoch != JOIN_EPOCH:
            member = self._known(member_id, instance_id)
            member.check_epoch(asked.epoch, asked.owned)
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

    def _leave(self, asked: ConsumerHeartbeat) -> Beaten:
        member = self._known(asked.member_id, asked.instance_id)
        if asked.epoch == STATIC_LEAVE_EPOCH:
            self._leave_for_a_while(member)
        else:
            self._fence([member.member_id])
        self.consumer_pulses.forget(member.member_id)
        return Beaten(asked.member_id, asked.epoch, 0)

    def leave_all(self, leaving: Iterable[Leaver]) -> list[SegstoreError | None]:
        """Remove several members, as administrators ask; return for each why it could not be removed. A
        static member may be named by its instance id alone (KIP-345).
        """
        gone: dict[str, None] = {}
        told: list[SegstoreError | None] = []
        for member_id, instance in leaving:
            try:
                gone[self._leaving(member_id, instance)] = None
                told.append(None)
            except (UnknownMemberIdError, FencedInstanceIdError) as error:
                told.append(copy_of(error))
        self._fence(list(gone))
        return told

    def _leaving(self, member_id: str, instance: str | None) -> str:
        if instance is None:
            return self.group.member(member_id).member_id
        held = self.group.instances.get(instance, "")
        return self._known(member_id or held, instance).member_id

    def _beat(self, before: ConsumerMember, after: ConsumerMember, now: float) -> None:
        member_id, timeout = after.member_id, after.subscription.rebalance_timeout_ms
        if before.is_classic:  # it has gone over to KIP-848, or was replaced by this one
            self._sessions.end(member_id, Wait.JOIN, Wait.SYNC)
        self._extend(after, now)
        if after.current == before.current and not before.is_classic:
            return
        if after.current.state is MemberState.UNREVOKED_PARTITIONS:
            self._sessions.await_until(member_id, Wait.REVOKE, now + timeout)
        else:
            self._sessions.end(member_id, Wait.REVOKE)


def _check_joining(asked: ConsumerHeartbeat) -> None:
    if asked.rebalance_timeout_ms == -1:
        raise InvalidRequestError("rebalance_timeout_ms must be given to join")
    if asked.owned is None or asked.owned:
        raise InvalidRequestError("topic_partitions must be empty to join")
    if asked.topic_names is None and asked.topic_regex is None:
        raise InvalidRequestError("subscribed_topic_names or subscribed_topic_regex must be given to join")
