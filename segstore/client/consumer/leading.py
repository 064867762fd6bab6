"""What a group's leader does: it hands out the partitions, and watches the topics for whether to do so again.

Nothing on disk. Threads: one, the consumer's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from segstore.coordinator.consumer_protocol import decode_assignment, decode_subscription, encode_assignment
from segstore.coordinator.group.assignors.base import Assignor
from segstore.coordinator.group.membership import Joined, MemberInfo
from segstore.coordinator.structs import TopicPartition
from segstore.storage.meta.topics import TopicInfo

Topics = Mapping[str, TopicInfo]
_Seen = dict[str, "tuple[str, tuple[int, ...]] | None"]


class Leading:
    """Of one generation, by its leader."""

    def __init__(self, joined: Joined, topics: Topics) -> None:
        self._subscriptions = {
            member.member_id: decode_subscription(member.subscription, member.group_instance_id)
            for member in joined.members
        }
        self._wanted = {topic for each in self._subscriptions.values() for topic in each.topics}
        self._seen = self._snapshot(topics)
        self._partitions = {t: topics[t].partition_ids for t in sorted(self._wanted) if t in topics}

    def assignments(self, assignor: Assignor) -> dict[str, bytes]:
        """Every member's assignment."""
        found = assignor.assign(self._partitions, self._subscriptions)
        return {member: encode_assignment(found.get(member, ())) for member in self._subscriptions}

    def complete(self, members: Iterable[MemberInfo]) -> bool:
        """Whether the members have all partitions there are: a static leader that was away may find more."""
        have = {tp for member in members for tp in decode_assignment(member.assignment)}
        return have == {TopicPartition(t, p) for t, numbers in self._partitions.items() for p in numbers}

    def outdated(self, topics: Topics) -> bool:
        """Whether there is more to hand out, or less, than there was."""
        return self._snapshot(topics) != self._seen

    def _snapshot(self, topics: Topics) -> _Seen:
        found = {topic: topics.get(topic) for topic in self._wanted}
        return {t: None if info is None else (info.topic_id, info.partition_ids) for t, info in found.items()}
