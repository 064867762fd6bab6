"""`GroupDraft`: what a request would change in a consumer group, as records that are yet to be written
(Kafka: GroupMetadataManager.consumerGroupHeartbeat, consumerGroupFenceMembers).

Threads: under the group's lock. A draft belongs to one request; the group stays as it is.
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

_Topics = Callable[[ConsumerMemberValue], frozenset[str]]


class Assignors(NamedTuple):
    """Those that members may ask for, by name; the first is used where none asks."""

    known: Mapping[str, ServerAssignor]

    @property
    def default(self) -> str:
        return next(iter(self.known))


class GroupDraft:
    """`changes` are the records; `now_ms` is ms since the epoch."""

    def __init__(
        self, group: ConsumerGroup, topics: AssignableTopics, assignors: Assignors, now_ms: int
    ) -> None:
        self._group, self._topics, self._assignors, self._now_ms = group, topics, assignors, now_ms
        self.changes: list[Change] = []
        self._regexes = group.regexes

    # --- a member lives ------------------------------------------------------------------------

    def replace_member(self, before: ConsumerMember, member_id: str) -> ConsumerMember:
        """Let a static member that has come back have its place under a new id; return it."""
        after = before.replaced_by(member_id)
        self._remove(before.member_id)
        self._add(GroupRecordType.MEMBER, member_id, after.subscription)
        self._add(GroupRecordType.TARGET, member_id, TargetAssignment(self._group.target(before.member_id)))
        self._add(GroupRecordType.CURRENT, member_id, after.current)
        return after

    def update(
        self,
        member: ConsumerMember,
        told: ConsumerMemberValue,
        owned: Assignment | None,
        has_new_topics: bool,
        may_describe: MayDescribe | None = None,
    ) -> ConsumerMember:
        """Take what a member says of itself and of its partitions; assign the group anew where that, or
        `has_new_topics`, has changed what is to be assigned; return the member one step nearer to its target.
        `may_describe` bounds the topics of regular expressions; None: all may be described. Raises
        InvalidRegularExpressionError, FencedMemberEpochError.
        """
        updated = replace(member, subscription=told)
        must_assign = self._group.epoch == 0
        if updated != member:
            self._add(GroupRecordType.MEMBER, updated.member_id, told)
            must_assign |= told.topic_names != member.subscription.topic_names
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
        """Note that a static member has left, and will come back."""
        self._add(GroupRecordType.CURRENT, member.member_id, member.left_for_a_while().current)

    def _with(self, updated: ConsumerMember) -> dict[str, ConsumerMember]:
        """Return the members with this one, and without the one that it replaces."""
        members = {**self._group.members, updated.member_id: updated}
        before = self._group.instances.get(updated.subscription.instance_id or "")
        if before is not None and before != updated.member_id:
            del members[before]
        return members

    def _target(self, member: ConsumerMember) -> Assignment:
        """Return the member's target so far, or that of the member that it replaces."""
        before = self._group.instances.get(member.subscription.instance_id or "", member.member_id)
        return self._group.target(before)

    # --- members go ------------------------------------------------------------------------------

    def fence(self, member_ids: Collection[str]) -> None:
        """Remove members; the group is assigned anew when the next one is heard of."""
        for member_id in member_ids:
            self._remove(member_id)
        left = {each: member for each, member in self._group.members.items() if each not in member_ids}
        self._forget_regexes(left.values())
        self._raise(left, True)

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
        """Find the topics of regular expressions that are new here, and of all where topics have changed; as
        in Kafka, those that the member may describe that asks (filterTopicDescribeAuthorizedTopics). A
        classic member, which has no regular expression, looks for none. Return whether the group must be
        assigned anew.
        """
        old, new = before.subscription.topic_regex or "", after.subscription.topic_regex or ""
        if old != new:
            self._forget_regexes(self._with(after).values())
        wanted = set(self._regexes) if has_new_topics and not after.is_classic else set()
        wanted |= {new} if new and new not in self._regexes else set()
        changed = False
        for regex in sorted(wanted):
            found = self._topics.matching(regex, may_describe)
            held = self._regexes.get(regex)
            if held is None or held.topics != found:
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
        self._regexes = {each: held for each, held in self._regexes.items() if each in used}

    def _names(self) -> _Topics:
        """Return a function from subscriptions to topics, which remembers: many members have the same."""
        regexes = self._regexes

        @cache
        def found(names: frozenset[str], regex: str | None) -> frozenset[str]:
            resolved = regexes.get(regex or "")
            return names if resolved is None else names | resolved.topics

        return lambda told: found(told.topic_names, told.topic_regex)

    # --- epochs and targets ------------------------------------------------------------------------

    def _raise(self, members: Mapping[str, ConsumerMember], must_assign: bool) -> int:
        """Raise the group's epoch where it must be assigned anew, as it must where its topics are others;
        return the epoch.
        """
        names = self._names()
        topics = {name for told in {m.subscription for m in members.values()} for name in names(told)}
        digest = self._topics.digest(topics)
        if not must_assign and digest == self._group.metadata_hash:
            return self._group.epoch
        if self._group.has_partition_metadata:
            self.changes.append((RecordKey(GroupRecordType.PARTITION_METADATA), None))
        epoch = self._group.epoch + 1
        self._add(GroupRecordType.EPOCH, "", GroupEpoch(epoch, digest))
        return epoch

    def _assign(self, members: Mapping[str, ConsumerMember], epoch: int) -> Mapping[str, Assignment]:
        """Work out the targets of all members, and keep those that changed."""
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
