"""`ShareMembership`: a share group's answers to its members (KIP-932; Kafka: GroupMetadataManager).

Threads: under the group's lock. `now` is ms of the monotonic clock in every method.
"""

from __future__ import annotations

from dataclasses import replace

from segstore.coordinator.group.consumers.topics import AssignableTopics
from segstore.coordinator.group.share.initialising import done, missing, starts
from segstore.coordinator.group.share.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    ShareBeaten,
    ShareHeartbeat,
    ShareMember,
)
from segstore.coordinator.group.share.states import ShareStates
from segstore.coordinator.offsets.share_schema import ShareStateTopics
from segstore.errors import GroupMaxSizeReachedError


class ShareMembership(ShareStates):
    """The answers to heartbeats."""

    def heartbeat(self, asked: ShareHeartbeat, now: float) -> ShareBeaten:
        """Raises InvalidRequestError, UnknownMemberIdError, FencedMemberEpochError, GroupMaxSizeReachedError,
        and what `write` and the state log raise.
        """
        asked.check()
        if asked.epoch == LEAVE_EPOCH:
            self.fence([self.group.member(asked.member_id).member_id])
            return ShareBeaten(asked.member_id, LEAVE_EPOCH, 0)
        member = self._asking(asked)
        after = self._updated(member, asked, now)
        self._extend(after.member_id, now)
        if asked.pulse is None:
            self.pulses.forget(after.member_id)
        else:
            self.pulses.attend(after.member_id, asked.pulse, now)
        is_new = asked.epoch == JOIN_EPOCH or asked.topic_names is not None
        is_told = is_new or after.current.assigned != member.current.assigned or asked.epoch != member.epoch
        interval = self._outside.timing().heartbeat_interval_ms
        return ShareBeaten(
            after.member_id, after.epoch, interval, after.current.assigned if is_told else None
        )

    def _asking(self, asked: ShareHeartbeat) -> ShareMember:
        """Return the member that asks, as it was; a new one if it joins."""
        members, member_id = self.group.members, asked.member_id
        if asked.epoch != JOIN_EPOCH:
            member = self.group.member(member_id)
            member.check_epoch(asked.epoch)
            return member
        if member_id not in members and len(members) >= self._outside.max_size:
            raise GroupMaxSizeReachedError(
                f"share group {self.group.group_id!r} has {len(members)} members, which is "
                "group.share.max.size"
            )
        return members.get(member_id) or ShareMember(member_id)

    def _updated(self, member: ShareMember, asked: ShareHeartbeat, now: float) -> ShareMember:
        """Take a member's account of itself; return the member with its target."""
        topics = self._outside.topics()
        updated = replace(member, subscription=asked.told(member.subscription))
        self.forget_deleted(topics)
        partitions, epoch = self._initialised(updated, topics)
        draft = self._draft(topics, epoch)
        may_assign = now >= self._may_assign_at or not self.group.members
        after = draft.update(updated, partitions, may_assign, topics is not self._seen)
        self._commit(draft, now)
        self._seen = topics
        return after

    def _initialised(self, updated: ShareMember, topics: AssignableTopics) -> tuple[ShareStateTopics, int]:
        """Begin the states of partitions that the group lacks; return all that it has then, and the least
        epoch that it must have.
        """
        held = self.group.partitions
        is_known = self.group.members.get(updated.member_id) == updated
        if is_known and topics is self._seen and not held.initializing:
            return held, 0
        names = {*self.group.subscribed(), *updated.subscription.topic_names}
        wanted = {each: frozenset(range(topics.counts[each])) for each in topics.ids_of(names)}
        new = missing(held, wanted, topics.names)
        if not new:
            return held, 0
        epoch = self.begin(new, starts(self.group.group_id, held, new), self.group.next_epoch)
        return done(self.group.partitions, new), epoch
