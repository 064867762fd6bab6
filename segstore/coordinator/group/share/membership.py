"""`ShareMembership`: handles the heartbeats of a share group's members (KIP-932; Kafka:
GroupMetadataManager).

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
    """The members of a share group, and the answers to their heartbeats."""

    def heartbeat(self, request: ShareHeartbeat, now: float) -> ShareBeaten:
        """Handle a heartbeat, and return the member's epoch and assignment. Raises InvalidRequestError,
        UnknownMemberIdError, FencedMemberEpochError, GroupMaxSizeReachedError, and the errors of
        `ShareOutside.write` and of `StateLog`.
        """
        request.check()
        if request.epoch == LEAVE_EPOCH:
            self.fence([self.group.member(request.member_id).member_id])
            return ShareBeaten(request.member_id, LEAVE_EPOCH, 0)
        member = self._requester(request)
        after = self._updated(member, request, now)
        self._extend(after.member_id, now)
        if request.pulse is None:
            self.pulses.forget(after.member_id)
        else:
            self.pulses.attend(after.member_id, request.pulse, now)
        is_new = request.epoch == JOIN_EPOCH or request.topic_names is not None
        has_changed = after.current.assigned != member.current.assigned
        sends_assignment = is_new or has_changed or request.epoch != member.epoch
        interval = self._outside.timing().heartbeat_interval_ms
        return ShareBeaten(
            after.member_id, after.epoch, interval, after.current.assigned if sends_assignment else None
        )

    def _requester(self, request: ShareHeartbeat) -> ShareMember:
        """Return the member in its state before the heartbeat. If it joins, and the group has no such member,
        return a new member.
        """
        members, member_id = self.group.members, request.member_id
        if request.epoch != JOIN_EPOCH:
            member = self.group.member(member_id)
            member.check_epoch(request.epoch)
            return member
        if member_id not in members and len(members) >= self._outside.max_size:
            raise GroupMaxSizeReachedError(
                f"share group {self.group.group_id!r} has {len(members)} members, which is "
                "group.share.max.size"
            )
        return members.get(member_id) or ShareMember(member_id)

    def _updated(self, member: ShareMember, request: ShareHeartbeat, now: float) -> ShareMember:
        """Update the member's subscription from its heartbeat. Return the member with its target as its
        assignment.
        """
        topics = self._outside.topics()
        updated = replace(member, subscription=request.merged(member.subscription))
        self.forget_deleted(topics)
        partitions, epoch = self._initialised(updated, topics)
        draft = self._draft(topics, epoch)
        may_assign = now >= self._may_assign_at or not self.group.members
        after = draft.update(updated, partitions, may_assign, topics is not self._seen)
        self._commit(draft, now)
        self._seen = topics
        return after

    def _initialised(self, updated: ShareMember, topics: AssignableTopics) -> tuple[ShareStateTopics, int]:
        """Create states for subscribed partitions that have no state. Return (the group's new record of
        partitions, the least epoch that the group must have, or 0 if all partitions were recorded before).
        """
        record = self.group.partitions
        is_known = self.group.members.get(updated.member_id) == updated
        if is_known and topics is self._seen and not record.initializing:
            return record, 0
        names = {*self.group.subscribed(), *updated.subscription.topic_names}
        wanted = {each: frozenset(range(topics.counts[each])) for each in topics.ids_of(names)}
        new = missing(record, wanted, topics.names)
        if not new:
            return record, 0
        begins = starts(self.group.group_id, record, new)
        # A state that is there already stays: the process that wrote it has stopped before it recorded that,
        # and may have answered an administrator who set the start offset.
        kept = self.begun_states(begins)
        epoch = max((state.state_epoch for state in kept.values()), default=0)
        lacking = {key: start for key, start in begins.items() if key not in kept}
        epoch = self.begin(new, lacking, max(epoch, self.group.next_epoch))
        return done(self.group.partitions, new), epoch
