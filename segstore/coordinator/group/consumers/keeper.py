"""`Keeper`: owns a consumer group, writes its changes, and removes members whose sessions have expired
(KIP-848; Kafka: GroupMetadataManager).

On disk: the function `write` writes the records of a change; after that the change is applied in memory.
Threads: under the group's lock. `now` is ms of the monotonic clock in every method.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from segstore.coordinator.group.classic.member import ClassicGroupMember
from segstore.coordinator.group.consumers.assignors import SERVER_ASSIGNORS
from segstore.coordinator.group.consumers.change import Assignors, GroupDraft
from segstore.coordinator.group.consumers.group import ConsumerGroup, ConsumerGroupInfo
from segstore.coordinator.group.consumers.member import ConsumerMember
from segstore.coordinator.group.consumers.pulses import ConsumerPulses
from segstore.coordinator.group.consumers.sessions import Sessions, Wait
from segstore.coordinator.group.consumers.topics import AssignableTopics
from segstore.coordinator.group_settings import Timing
from segstore.coordinator.offsets.consumer_schema import Assignment, Change, MemberState
from segstore.coordinator.structs import CLIENT_HOST, TopicPartition
from segstore.errors import (
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    OffsetNotAvailableError,
    SegstoreError,
    UnknownMemberIdError,
)
from segstore.logger import Logger

log = Logger("segstore")

Write = Callable[[Sequence[Change]], None]
"""Writes all records or none. Raises if the write fails."""
Downgrade = Callable[[Collection[str]], None]
"""Converts the group, without these members, to a classic group; raises if the write fails."""
RETRY_MS = 500.0
"""Delay of the next attempt to remove a member whose removal could not be written."""


class ConsumerGroupSettings(NamedTuple):
    """The store's settings `group.consumer.*`. A group with members is converted to a classic group only
    if `may_downgrade` is set and the group would have at most `max_classic_size` members.
    """

    max_size: int
    assignors: str
    may_downgrade: bool
    max_classic_size: int

    @property
    def known(self) -> Assignors:
        return Assignors({name: SERVER_ASSIGNORS[name] for name in self.assignors.split(",")})


class Outside(NamedTuple):
    """The functions of the store that a group calls. `topics` returns the store's topics; it returns the same
    object until a topic changes. `wall` returns ms since the epoch; `timing` returns the group's current
    timeouts.
    """

    write: Write
    downgrade: Downgrade
    topics: Callable[[], AssignableTopics]
    wall: Callable[[], int]
    timing: Callable[[], Timing]


class Keeper:
    """The members of a consumer group and their sessions, which start when this object is made. The counter
    `changes` grows with each change of the group; a member then asks for its assignment again. A member whose
    consumer is in this process has a `Pulse`, by which the coordinator sees that the consumer is alive:
    `pulses` has the members of the classic protocol with a `Pulse`, `consumer_pulses` the pulses of KIP-848
    members.
    """

    def __init__(
        self, group: ConsumerGroup, outside: Outside, settings: ConsumerGroupSettings, now: float
    ) -> None:
        self.group, self._outside, self._settings = group, outside, settings
        self._assignors = settings.known
        self._seen: AssignableTopics | None = None
        self._sessions = Sessions()
        self.changes = 0
        self.pulses: dict[str, ClassicGroupMember] = {}
        self.consumer_pulses = ConsumerPulses()
        for member in group.members.values():
            self._begin(member, now)

    def go_on(self, before: Keeper, now: float) -> None:
        """Use the deadlines and `Pulse` objects of `before`, which was the group's object until the group was
        read again from the log. Extend all sessions, because heartbeats could not be answered until then.
        """
        self._sessions, self.pulses, self.consumer_pulses = (
            before._sessions,
            before.pulses,
            before.consumer_pulses,
        )
        self._sessions.forget(before.group.members.keys() - self.group.members.keys())
        for member in self.group.members.values():
            if member.member_id in self._sessions:
                self._extend(member, now)
            else:
                self._begin(member, now)

    # --- members ---------------------------------------------------------------------------------

    def _joining(self, member_id: str) -> ConsumerMember:
        """Return the member with this id; if there is none, return a new member. Raises
        GroupMaxSizeReachedError if the group has no room for a new member.
        """
        members = self.group.members
        if member_id not in members and len(members) >= self._settings.max_size:
            raise GroupMaxSizeReachedError(
                f"group {self.group.group_id!r} has {len(members)} members, which is group.consumer.max.size"
            )
        return members.get(member_id) or ConsumerMember(member_id)

    def _known(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """Return the member with this id. Raises UnknownMemberIdError, and FencedInstanceIdError if another
        member has this instance id.
        """
        if instance_id is None:
            return self.group.member(member_id)
        member = self.group.static_member(instance_id)
        if member is None:
            raise UnknownMemberIdError(
                f"group {self.group.group_id!r} has no member with instance id {instance_id!r}"
            )
        if member.member_id != member_id:
            raise FencedInstanceIdError(
                f"instance id {instance_id!r} of group {self.group.group_id!r} is {member.member_id!r}'s "
                f"now, not {member_id!r}'s"
            )
        return member

    def _fence(self, member_ids: Collection[str]) -> None:
        """Remove members. If the group can be a classic group without them, it becomes a classic group, and
        this object must not be used any more.
        """
        if not member_ids:
            return
        if self._is_classic_without(member_ids):
            self._outside.downgrade(member_ids)
            return
        draft = self._draft()
        draft.fence(member_ids)
        self._commit(draft)
        self._sessions.forget(member_ids)

    def _is_classic_without(self, member_ids: Collection[str], joining: int = 0) -> bool:
        """Return whether the group becomes a classic group when these members leave and `joining` classic
        members join (GroupMetadataManager: validateOnlineDowngradeWithFencedMembers).
        """
        remaining = [member for each, member in self.group.members.items() if each not in member_ids]
        size = len(remaining) + joining
        return (
            self._settings.may_downgrade
            and 0 < size <= self._settings.max_classic_size
            and all(member.is_classic for member in remaining)
        )

    # --- offsets ---------------------------------------------------------------------------------

    def check_commit(
        self,
        member_id: str,
        epoch: int,
        partitions: Collection[TopicPartition],
        is_named: bool,
        knows_epochs: bool,
    ) -> None:
        """Raise an error unless a member may commit offsets of these partitions now.
        `ConsumerGroup.check_commit` describes the parameters and the errors.
        """

        def by_id() -> Assignment:
            return self._outside.topics().assignment(partitions)

        self.group.check_commit(member_id, epoch, is_named, knows_epochs, by_id)

    # --- time ----------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Remove members that have missed a deadline for a heartbeat, a revocation, a join or a sync, and
        dynamic members whose consumers poll too late or were garbage collected. If a removal can't be
        written, it is tried again after RETRY_MS.
        """
        late = [*self._check_pulses(now), *self._check_consumer_pulses(now), *self._sessions.over(now)]
        late = [member_id for member_id in dict.fromkeys(late) if member_id in self.group.members]
        try:
            self._fence(late)
        except SegstoreError as error:
            # OffsetNotAvailableError is usual after a failover, and is not logged.
            if not isinstance(error, OffsetNotAvailableError):
                log.exception("group %s: members that are gone could not be removed", self.group.group_id)
            for member_id in late:
                self._sessions.end(member_id, Wait.REVOKE, Wait.JOIN, Wait.SYNC)
                self._sessions.await_until(member_id, Wait.SESSION, now + RETRY_MS)

    def _check_pulses(self, now: float) -> list[str]:
        """Check each `Pulse` of a classic member. Return the ids of the dynamic members whose consumer was
        garbage collected or polls too late.
        """
        late = []
        for member_id, member in list(self.pulses.items()):
            current = self.group.members.get(member_id)
            if current is None or not current.is_classic:
                del self.pulses[member_id]
            elif member.look(now):
                self._sessions.await_until(member_id, Wait.SESSION, member.deadline)
            else:
                late.append(member_id)
        return late

    def _check_consumer_pulses(self, now: float) -> list[str]:
        """Check each `Pulse` of a KIP-848 member. If the consumer was garbage collected or polls too late,
        return the id of a dynamic member, or record that a static member has left for a while, as in Kafka.
        """
        late = []
        for member_id, is_alive in self.consumer_pulses.look(now):
            member = self.group.members.get(member_id)
            if member is not None and is_alive:
                self._extend(member, now)
            else:
                self.consumer_pulses.forget(member_id)
                late += [] if member is None else self._ended(member)
        return late

    def _ended(self, member: ConsumerMember) -> list[str]:
        """Return [member id] if the member is dynamic; if the member is static, record that it has left for a
        while, and return []. If that can't be written, the member stays until its session expires.
        """
        if member.subscription.instance_id is None:
            return [member.member_id]
        try:
            self._leave_for_a_while(member)
        except SegstoreError:
            log.exception("group %s: a static member that is away could not be noted", self.group.group_id)
        return []

    def _leave_for_a_while(self, member: ConsumerMember) -> None:
        """Record that a static member leaves, and may come back until its session expires."""
        draft = self._draft()
        draft.leave_for_a_while(member)
        self._commit(draft)
        self._sessions.end(member.member_id, Wait.REVOKE)

    def due(self) -> float:
        """Return the time at which `expire` must be called next."""
        classic = (member.due() for member in self.pulses.values())
        timing = self._outside.timing()
        interval = min(timing.heartbeat_interval_ms, timing.session_timeout_ms / 2)
        consumers = self.consumer_pulses.due(interval)
        return min(itertools.chain([self._sessions.due(), consumers], classic))

    def _begin(self, member: ConsumerMember, now: float) -> None:
        """Start the session of a member that was read from the log."""
        self._extend(member, now)
        # If a member's consumer was in an earlier process of the store, the member has no `Pulse`, and the
        # next check removes it.
        if member.subscription.client_host == CLIENT_HOST and not member.is_classic:
            self.consumer_pulses.attend(member.member_id, None, now)
        if member.current.state is MemberState.UNREVOKED_PARTITIONS and not member.is_classic:
            timeout = member.subscription.rebalance_timeout_ms
            self._sessions.await_until(member.member_id, Wait.REVOKE, now + timeout)

    def _extend(self, member: ConsumerMember, now: float) -> None:
        classic = member.subscription.classic
        timeout = (classic or self._outside.timing()).session_timeout_ms
        self._sessions.await_until(member.member_id, Wait.SESSION, now + timeout)

    # --- description and changes -------------------------------------------------------------------------

    def info(self) -> ConsumerGroupInfo:
        """Return the group's description."""
        return self.group.info(self._assignors.default)

    def _draft(self, topics: AssignableTopics | None = None) -> GroupDraft:
        return GroupDraft(self.group, topics or self._outside.topics(), self._assignors, self._outside.wall())

    def _commit(self, draft: GroupDraft) -> None:
        if draft.changes:
            self._outside.write(draft.changes)
            self.group.replay(draft.changes)
            self.changes += 1
