"""`Keeper`: holds a consumer group, has its changes written, and ends the sessions of its members (KIP-848;
Kafka: GroupMetadataManager).

On disk: the records of a change are given to the function `write`, and count once they are written. Threads:
under the group's lock. `now` is ms of the monotonic clock in every method.
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
"""Writes records, all or none; raises where that fails."""
Downgrade = Callable[[Collection[str]], None]
"""Makes a classic group of the group without these members; raises where that can't be written."""
RETRY_MS = 500.0
"""How long a removal waits that could not be written."""


class ConsumerGroupSettings(NamedTuple):
    """The store's settings `group.consumer.*`; `may_downgrade` and `max_classic_size` say which groups become
    classic ones again.
    """

    max_size: int
    assignors: str
    may_downgrade: bool
    max_classic_size: int

    @property
    def known(self) -> Assignors:
        return Assignors({name: SERVER_ASSIGNORS[name] for name in self.assignors.split(",")})


class Outside(NamedTuple):
    """What a group asks of others. `topics` returns what the store has now: the same object as long as no
    topic has changed. `wall` returns ms since the epoch; `timing`, what holds for the group now.
    """

    write: Write
    downgrade: Downgrade
    topics: Callable[[], AssignableTopics]
    wall: Callable[[], int]
    timing: Callable[[], Timing]


class Keeper:
    """The members of `group`, whose sessions begin with this object. `changes` counts the changes of which
    members may have to know. `pulses` has the members of the classic protocol in this process, which send no
    heartbeats; `consumer_pulses` has those of KIP-848.
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
        """Take over sessions and signs of life of the members that the group had `before` it was read anew
        from the log. Sessions begin anew, as after each load: no heartbeat could be answered before.
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
        """Return a new member, or one that joins anew. Raises GroupMaxSizeReachedError."""
        members = self.group.members
        if member_id not in members and len(members) >= self._settings.max_size:
            raise GroupMaxSizeReachedError(
                f"group {self.group.group_id!r} has {len(members)} members, which is group.consumer.max.size"
            )
        return members.get(member_id) or ConsumerMember(member_id)

    def _known(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """Return a member. Raises UnknownMemberIdError, FencedInstanceIdError."""
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
        """Remove members. A group that has members of the classic protocol alone then becomes a classic one,
        and this object is that of no group any more.
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
        """Return whether the group becomes a classic one where these members leave, and so many join
        (GroupMetadataManager: validateOnlineDowngradeWithFencedMembers).
        """
        left = [member for each, member in self.group.members.items() if each not in member_ids]
        size = len(left) + joining
        return (
            self._settings.may_downgrade
            and 0 < size <= self._settings.max_classic_size
            and all(member.is_classic for member in left)
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
        """Raise what `ConsumerGroup.check_commit` raises."""

        def by_id() -> Assignment:
            return self._outside.topics().assignment(partitions)

        self.group.check_commit(member_id, epoch, is_named, knows_epochs, by_id)

    # --- time ----------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Remove members whose sessions have ended, or that did not do in time what was waited for. Where
        that can't be written it is tried again.
        """
        late = [*self._feel(now), *self._feel_consumers(now), *self._sessions.over(now)]
        late = [member_id for member_id in dict.fromkeys(late) if member_id in self.group.members]
        try:
            self._fence(late)
        except SegstoreError as error:
            if not isinstance(error, OffsetNotAvailableError):  # as after each failover
                log.exception("group %s: members that are gone could not be removed", self.group.group_id)
            for member_id in late:
                self._sessions.end(member_id, Wait.REVOKE, Wait.JOIN, Wait.SYNC)
                self._sessions.await_until(member_id, Wait.SESSION, now + RETRY_MS)

    def _feel(self, now: float) -> list[str]:
        """Look at the pulses of members; return those that live, but poll too late."""
        late = []
        for member_id, member in list(self.pulses.items()):
            held = self.group.members.get(member_id)
            if held is None or not held.is_classic:
                del self.pulses[member_id]
            elif member.look(now):
                self._sessions.await_until(member_id, Wait.SESSION, member.deadline)
            else:
                late.append(member_id)
        return late

    def _feel_consumers(self, now: float) -> list[str]:
        """Look at the pulses of KIP-848's members; return those that are removed, because they were dropped
        or poll too late. A static member only leaves for a while, as in Kafka.
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
        """Return the member, unless it is static: then it has left for a while. If that can't be written, its
        session ends later.
        """
        if member.subscription.instance_id is None:
            return [member.member_id]
        try:
            self._leave_for_a_while(member)
        except SegstoreError:
            log.exception("group %s: a static member that is away could not be noted", self.group.group_id)
        return []

    def _leave_for_a_while(self, member: ConsumerMember) -> None:
        """Note that a static member leaves, and may come back until its session ends."""
        draft = self._draft()
        draft.leave_for_a_while(member)
        self._commit(draft)
        self._sessions.end(member.member_id, Wait.REVOKE)

    def due(self) -> float:
        """Return when `expire` has something to do next."""
        classic = (member.due() for member in self.pulses.values())
        timing = self._outside.timing()
        interval = min(timing.heartbeat_interval_ms, timing.session_timeout_ms / 2)
        consumers = self.consumer_pulses.due(interval)
        return min(itertools.chain([self._sessions.due(), consumers], classic))

    def _begin(self, member: ConsumerMember, now: float) -> None:
        """Begin the session of a member that the log has. A consumer in the process that wrote the log has
        ended with that process.
        """
        self._extend(member, now)
        if member.subscription.client_host == CLIENT_HOST and not member.is_classic:
            self.consumer_pulses.attend(member.member_id, None, now)
        if member.current.state is MemberState.UNREVOKED_PARTITIONS and not member.is_classic:
            timeout = member.subscription.rebalance_timeout_ms
            self._sessions.await_until(member.member_id, Wait.REVOKE, now + timeout)

    def _extend(self, member: ConsumerMember, now: float) -> None:
        classic = member.subscription.classic
        timeout = (classic or self._outside.timing()).session_timeout_ms
        self._sessions.await_until(member.member_id, Wait.SESSION, now + timeout)

    # --- what is told, and what is kept ----------------------------------------------------------------

    def info(self) -> ConsumerGroupInfo:
        """Return the group as administrators see it."""
        return self.group.info(self._assignors.default)

    def _draft(self, topics: AssignableTopics | None = None) -> GroupDraft:
        return GroupDraft(self.group, topics or self._outside.topics(), self._assignors, self._outside.wall())

    def _commit(self, draft: GroupDraft) -> None:
        if draft.changes:
            self._outside.write(draft.changes)
            self.group.replay(draft.changes)
            self.changes += 1
