"""`GroupDraft`: the changes of a request to a consumer group, as records that are not yet written (Kafka:
GroupMetadataManager.consumerGroupHeartbeat, consumerGroupFenceMembers).

Threads: under the group's lock. A draft belongs to one request, and does not change the group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from segstore.coordinator.group.consumers.assignors import MemberSpec, ServerAssignor
from segstore.coordinator.group.consumers.group import ConsumerGroup
from segstore.coordinator.group.consumers.member import ConsumerMember
from segstore.coordinator.group.consumers.topics import AssignableTopics, MayDescribe
from segstore.coordinator.offsets.consumer_schema import (
    Assignment,
    Change,
    ConsumerMemberValue,
    GroupEpoch,
    GroupRecordType,
    RecordKey,
    Resolved,
    TargetAssignment,
    TargetEpoch,
    Value,
)
from segstore.errors import InvalidRegularExpressionError

_Topics = Callable[[ConsumerMemberValue], frozenset[str]]


class Assignors(NamedTuple):
    """The assignors that members may ask for, by name; the first is the default."""

    known: Mapping[str, ServerAssignor]

    @property
    def default(self) -> str:
        return next(iter(self.known))


class GroupDraft:
    """The changes of one request, as records in `changes`; `now_ms` is ms since the epoch."""

    def __init__(
        self, group: ConsumerGroup, topics: AssignableTopics, assignors: Assignors, now_ms: int
    ) -> None:
        self._group, self._topics, self._assignors, self._now_ms = group, topics, assignors, now_ms
        self.changes: list[Change] = []
        self._regexes = group.regexes

    # --- members join ------------------------------------------------------------------------

    def replace_member(self, before: ConsumerMember, member_id: str) -> ConsumerMember:
        """Replace the static member `before`, which came back under the id `member_id`. Return the new
        member; it has the subscription, the target and the assignment of `before`.
        """
        after = before.replaced_by(member_id)
        self._remove(before.member_id)
        self._add(GroupRecordType.MEMBER, member_id, after.subscription)
        self._add(GroupRecordType.TARGET, member_id, TargetAssignment(self._group.target(before.member_id)))
        self._add(GroupRecordType.CURRENT, member_id, after.current)
        return after

    def update(
        self,
        member: ConsumerMember,
        subscription: ConsumerMemberValue,
        owned: Assignment | None,
        has_new_topics: bool,
        may_describe: MayDescribe | None = None,
    ) -> ConsumerMember:
        """Update a member's subscription, and move the member one step towards its target assignment; return
        the member. The group is assigned anew if the member's topics change. If `has_new_topics`, the store's
        topics have changed: the group is assigned anew if any member subscribes to a changed topic.
        `may_describe` limits the topics that regular expressions match; None means no limit. Raises
        InvalidRegularExpressionError, FencedMemberEpochError.
        """
        updated = replace(member, subscription=subscription)
        must_assign = self._group.epoch == 0
        if updated != member:
            self._add(GroupRecordType.MEMBER, updated.member_id, subscription)
            must_assign |= subscription.topic_names != member.subscription.topic_names
        must_assign |= self._resolve(member, updated, has_new_topics, may_describe)
        epoch = self._group.epoch
        if must_assign or has_new_topics:
            epoch = self._raise(self._with(updated), must_assign)
        target = self._target(updated)
        if epoch > self._group.target_epoch:
            target = self._assign(self._with(updated), epoch).get(updated.member_id, {})
        target_epoch = max(epoch, self._group.target_epoch)
        after = updated.reconciled(target_epoch, target, owned, self._group.is_owned)
        if after != updated:
            self._add(GroupRecordType.CURRENT, after.member_id, after.current)
        return after

    def leave_for_a_while(self, member: ConsumerMember) -> None:
        """Record that a static member has left, and may come back."""
        self._add(GroupRecordType.CURRENT, member.member_id, member.left_for_a_while().current)

    def _with(self, updated: ConsumerMember) -> dict[str, ConsumerMember]:
        """Return the group's members by id, with `updated` in its new state, and without the static member
        that `updated` replaces.
        """
        members = {**self._group.members, updated.member_id: updated}
        before = self._group.instances.get(updated.subscription.instance_id or "")
        if before is not None and before != updated.member_id:
            del members[before]
        return members

    def _target(self, member: ConsumerMember) -> Assignment:
        """Return the target of `member`, or the target of the static member that `member` replaces."""
        before = self._group.instances.get(member.subscription.instance_id or "", member.member_id)
        return self._group.target(before)

    # --- members leave -------------------------------------------------------------------------------

    def fence(self, member_ids: Collection[str]) -> None:
        """Remove members. The next heartbeat of any other member assigns the group anew."""
        for member_id in member_ids:
            self._remove(member_id)
        remaining = {each: member for each, member in self._group.members.items() if each not in member_ids}
        self._forget_regexes(remaining.values())
        self._raise(remaining, True)

    def _remove(self, member_id: str) -> None:
        for kind in (GroupRecordType.CURRENT, GroupRecordType.TARGET, GroupRecordType.MEMBER):
            self.changes.append((RecordKey(kind, member_id), None))

    # --- topics ----------------------------------------------------------------------------------

    def _resolve(
        self,
        before: ConsumerMember,
        after: ConsumerMember,
        has_new_topics: bool,
        may_describe: MayDescribe | None,
    ) -> bool:
        """If the member's regular expression is new to the group, find the topics that match it. If
        `has_new_topics`, find the topics that match each regular expression of the group. Return whether the
        member's regular expression or any found topics have changed, so that the group must be assigned anew.

        As in Kafka, only topics that the requesting member may describe are found
        (filterTopicDescribeAuthorizedTopics), and a heartbeat of a classic member does not search the new
        topics.
        """
        old, new = before.subscription.topic_regex or "", after.subscription.topic_regex or ""
        if old != new:
            self._forget_regexes(self._with(after).values())
        wanted = set(self._regexes) if has_new_topics and not after.is_classic else set()
        wanted |= {new} if new and new not in self._regexes else set()
        changed = False
        for regex in sorted(wanted):
            known = self._regexes.get(regex)
            try:
                found = self._topics.matching(regex, may_describe)
            except InvalidRegularExpressionError:
                if known is None:
                    raise
                continue  # google-re2 is no longer installed: the topics in `known` stay
            if known is None or known.topics != found:
                changed = True
                self._put_regex(regex, found)
        return changed or old != new

    def _put_regex(self, regex: str, topics: frozenset[str]) -> None:
        resolved = Resolved(topics, self._group.epoch, self._now_ms)
        self._regexes = {**self._regexes, regex: resolved}
        self._add(GroupRecordType.REGEX, regex, resolved)

    def _forget_regexes(self, members: Iterable[ConsumerMember]) -> None:
        used = {member.subscription.topic_regex for member in members}
        for regex in self._regexes.keys() - used:
            self.changes.append((RecordKey(GroupRecordType.REGEX, regex), None))
        self._regexes = {each: known for each, known in self._regexes.items() if each in used}

    def _names(self) -> _Topics:
        """Return a function that returns the topics of a subscription, from a cache, because many members
        have the same subscription.
        """
        regexes = self._regexes

        @cache
        def found(names: frozenset[str], regex: str | None) -> frozenset[str]:
            resolved = regexes.get(regex or "")
            return names if resolved is None else names | resolved.topics

        return lambda subscription: found(subscription.topic_names, subscription.topic_regex)

    # --- epochs and targets ------------------------------------------------------------------------

    def _raise(self, members: Mapping[str, ConsumerMember], must_assign: bool) -> int:
        """Return the group epoch, which is first raised by one if `must_assign` is set or if the subscribed
        topics have changed.
        """
        names = self._names()
        topics = {
            name
            for subscription in {m.subscription for m in members.values()}
            for name in names(subscription)
        }
        digest = self._topics.digest(topics)
        if not must_assign and digest == self._group.metadata_hash:
            return self._group.epoch
        if self._group.has_partition_metadata:
            self.changes.append((RecordKey(GroupRecordType.PARTITION_METADATA), None))
        epoch = self._group.epoch + 1
        self._add(GroupRecordType.EPOCH, "", GroupEpoch(epoch, digest))
        return epoch

    def _assign(self, members: Mapping[str, ConsumerMember], epoch: int) -> Mapping[str, Assignment]:
        """Compute the targets of `members`, and add records of the targets that changed. Return all targets,
        by member id.
        """
        names, ids = self._names(), cache(self._topics.ids_of)
        specs = {
            member_id: MemberSpec(
                ids(names(member.subscription)), self._target(member), member.subscription.instance_id
            )
            for member_id, member in members.items()
        }
        name = self._group.assignor(self._assignors.default, members.values())
        assignor = self._assignors.known.get(name) or self._assignors.known[self._assignors.default]
        targets = assignor.assign(specs, self._topics.counts)
        for member_id, target in targets.items():
            if target != self._group.targets.get(member_id):
                self._add(GroupRecordType.TARGET, member_id, TargetAssignment(target))
        self._add(GroupRecordType.TARGET_EPOCH, "", TargetEpoch(epoch))
        return targets

    def _add(self, kind: GroupRecordType, name: str, value: Value) -> None:
        self.changes.append((RecordKey(kind, name), value))
