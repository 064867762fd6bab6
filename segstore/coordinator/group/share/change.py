"""`ShareDraft`: the changes of a request to a share group, as records that are not yet written (KIP-932;
Kafka: GroupMetadataManager.shareGroupHeartbeat, shareGroupFenceMember).

Threads: under the group's lock. A draft belongs to one request, and does not change the group.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from segstore.coordinator.group.consumers.topics import AssignableTopics
from segstore.coordinator.group.share.group import ShareGroup
from segstore.coordinator.group.share.initialising import assignable
from segstore.coordinator.group.share.member import ShareMember
from segstore.coordinator.group.share.simple import ShareMemberSpec, assign
from segstore.coordinator.offsets.consumer_schema import Assignment, GroupEpoch, TargetAssignment
from segstore.coordinator.offsets.share_schema import (
    ShareChange,
    ShareKind,
    ShareRecordKey,
    ShareStateTopics,
    ShareTargetEpoch,
    ShareValue,
)


class ShareDraft:
    """The changes of one request, as records in `changes`, in the order in which Kafka writes them. If the
    group changes, its new epoch is at least `epoch`. `now_ms` is ms since the Unix epoch. `has_assigned` is
    True if the targets were computed.
    """

    def __init__(self, group: ShareGroup, topics: AssignableTopics, now_ms: int, epoch: int = 0) -> None:
        self._group, self._topics, self._now_ms = group, topics, now_ms
        self._next_epoch = max(group.next_epoch, epoch)
        self.changes: list[ShareChange] = []
        self.has_assigned = False

    def update(
        self, updated: ShareMember, partitions: ShareStateTopics, may_assign: bool, is_new: bool
    ) -> ShareMember:
        """Update a member's subscription, and record `partitions`, the share partitions that have a state.
        Return the member, which has its target as its assignment. The group epoch is raised if the member's
        topics or the partitions of subscribed topics change. If `is_new`, the store's topics have changed, or
        this is the first heartbeat since the group was read from the log. The group epoch is then also raised
        if a partition is in no member's target: an earlier process may have created the partition's state,
        and stopped. If `may_assign`, and the targets were computed for an earlier epoch, the group is
        assigned anew.
        """
        before = self._group.members.get(updated.member_id)
        if before is None or before.subscription != updated.subscription:
            self._add(ShareKind.MEMBER, updated.subscription, updated.member_id)
        members = {**self._group.members, updated.member_id: updated}
        must_assign = (
            before is None
            or before.subscription.topic_names != updated.subscription.topic_names
            or (is_new and self._is_settled and self._lacks(members, partitions))
        )
        epoch = self._raise(members, must_assign)
        target, target_epoch = self._group.target(updated.member_id), self._group.target_epoch
        if epoch > target_epoch and may_assign:
            target, target_epoch = self._assign(members, partitions, epoch)[updated.member_id], epoch
        after = updated
        if epoch > self._group.epoch or updated.epoch != target_epoch:
            after = updated.given(target_epoch, self._subscribed(target, updated))
        if after != updated:
            self._add(ShareKind.CURRENT, after.current, after.member_id)
        if partitions != self._group.partitions:
            self.note(partitions)
        return after

    def _subscribed(self, target: Assignment, member: ShareMember) -> Assignment:
        """Return the target without topics that were deleted or that the member does not subscribe to."""
        wanted = self._topics.ids_of(member.subscription.topic_names)
        return {topic_id: numbers for topic_id, numbers in target.items() if topic_id in wanted}

    @property
    def _is_settled(self) -> bool:
        """Return whether the targets were computed for the group's present epoch, so that no assignment is
        due.
        """
        return self._group.target_epoch >= self._group.epoch

    def _lacks(self, members: Mapping[str, ShareMember], partitions: ShareStateTopics) -> bool:
        """Return whether some subscribed partition with a state is in no member's target."""
        names = {name for member in members.values() for name in member.subscription.topic_names}
        assigned: dict[bytes, set[int]] = {}
        for target in self._group.targets.values():
            for topic_id, numbers in target.items():
                assigned.setdefault(topic_id, set()).update(numbers)
        there, wanted = assignable(partitions, self._topics.counts), self._topics.ids_of(names)
        return any(numbers - assigned.get(each, set()) for each, numbers in there.items() if each in wanted)

    def fence(self, member_ids: Collection[str]) -> None:
        """Remove members, and raise the group epoch; the group is assigned anew later."""
        for member_id in member_ids:
            for kind in (ShareKind.CURRENT, ShareKind.TARGET, ShareKind.MEMBER):
                self.changes.append((ShareRecordKey(kind, member_id), None))
        remaining = {name: member for name, member in self._group.members.items() if name not in member_ids}
        epoch = self._raise(remaining, True)
        if not remaining:  # no later request computes targets, so the target epoch is set here
            self._add(ShareKind.TARGET_EPOCH, ShareTargetEpoch(epoch))

    def reassign(self) -> None:
        """Compute the targets of all members for the group's epoch."""
        self._assign(self._group.members, self._group.partitions, self._group.epoch)

    def raise_epoch(self) -> None:
        """Raise the group's epoch, and change nothing else."""
        self._raise(self._group.members, True)

    def note(self, partitions: ShareStateTopics) -> None:
        """Add a record of the share partitions: those that have a state, those whose state is being created,
        and those whose state is being deleted.
        """
        self._add(ShareKind.PARTITIONS, partitions)

    def _raise(self, members: Mapping[str, ShareMember], must_assign: bool) -> int:
        """Return the group epoch, which is first raised if `must_assign` is set or if the subscribed topics
        have changed.
        """
        topics = {name for member in members.values() for name in member.subscription.topic_names}
        digest = self._topics.digest(topics)
        if not must_assign and digest == self._group.metadata_hash:
            return self._group.epoch
        self._add(ShareKind.EPOCH, GroupEpoch(self._next_epoch, digest))
        return self._next_epoch

    def _assign(
        self, members: Mapping[str, ShareMember], partitions: ShareStateTopics, epoch: int
    ) -> Mapping[str, Assignment]:
        """Compute the targets of `members`, and add records of the targets that changed. Return all targets,
        by member id.
        """
        specs = {
            name: ShareMemberSpec(
                self._topics.ids_of(member.subscription.topic_names), self._group.target(name)
            )
            for name, member in members.items()
        }
        targets = assign(specs, assignable(partitions, self._topics.counts))
        for name, target in targets.items():
            if target != self._group.targets.get(name):
                self._add(ShareKind.TARGET, TargetAssignment(target), name)
        self._add(ShareKind.TARGET_EPOCH, ShareTargetEpoch(epoch, self._now_ms))
        self.has_assigned = True
        return targets

    def _add(self, kind: ShareKind, value: ShareValue, member_id: str = "") -> None:
        self.changes.append((ShareRecordKey(kind, member_id), value))
