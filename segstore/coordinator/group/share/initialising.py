"""The steps that create and delete the durable states of a share group's partitions (KIP-932; Kafka:
GroupMetadataManager, ShareGroupStatePartitionMetadata).

The group's record of partitions first lists a step as begun; then the step is done in the log of states
(`StateLog`); then the record lists the step as done. After a crash the record still lists the step as begun,
and the step is repeated, but a state that was created before the crash stays. Threads: any; functions without
state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from segstore import names
from segstore.coordinator.offsets.consumer_schema import Assignment
from segstore.coordinator.offsets.share_schema import (
    NO_TOPICS,
    ShareStateTopics,
    TopicPartitionsInfo,
    TopicsInfo,
)
from segstore.coordinator.share.core.values import Durable
from segstore.coordinator.share.keys import ShareKey

UNKNOWN_START, FIRST_OFFSET = -1, 0
"""Start offsets of new share partitions: -1 if the group's reset policy decides, 0 for a partition that was
added to a topic of the group.
"""


class DurableStates(Protocol):
    """Reads and writes the durable states of share partitions. `StateLog` implements it."""

    def read(self, key: ShareKey, /) -> Durable | None:
        """Return the state of a share partition, or None if the partition has no state."""

    def initialise(self, states: Mapping[ShareKey, tuple[int, int]], /) -> None:
        """Create or replace the states of share partitions; `states` has the new (state epoch, start offset)
        of each. Raises FencedStateEpochError.
        """

    def delete(self, keys: Collection[ShareKey], /) -> None:
        """Delete the states of these share partitions."""

    def keys_of(self, group: str, /) -> Collection[ShareKey]:
        """Return the share partitions of a group that have a state."""


def missing(record: ShareStateTopics, wanted: Assignment, topics: Mapping[bytes, str]) -> TopicsInfo:
    """Return the partitions of `wanted` for which the creation of a state was not begun, or was begun and not
    finished.
    """
    found: dict[bytes, TopicPartitionsInfo] = {}
    for topic_id, numbers in wanted.items():
        lacking = numbers - record.initialized.get(topic_id, TopicPartitionsInfo("")).partitions
        if lacking:
            found[topic_id] = TopicPartitionsInfo(topics[topic_id], lacking)
    return found


def starts(group: str, record: ShareStateTopics, new: TopicsInfo) -> dict[ShareKey, int]:
    """Return the start offset of each new share partition. The offset is -1 for a topic that is new to the
    group: the group's reset policy decides. For a partition that was added to a topic of the group the offset
    is 0, so that no record is skipped.
    """
    return {
        key: FIRST_OFFSET if topic_id in record.initialized else UNKNOWN_START
        for topic_id, topic in new.items()
        for key in keys_of(group, {topic_id: topic})
    }


def begun(record: ShareStateTopics, new: TopicsInfo) -> ShareStateTopics:
    """Return the record that lists the partitions `new` as initializing. The record is written before the
    states of `new` are created.
    """
    return record._replace(initializing=_union(record.initializing, new))


def done(record: ShareStateTopics, new: TopicsInfo) -> ShareStateTopics:
    """Return the record that lists the partitions `new` as initialized. The record is written after the
    states of `new` were created.
    """
    return record._replace(
        initializing=_without(record.initializing, new), initialized=_union(record.initialized, new)
    )


def deleting(record: ShareStateTopics, topic_ids: Iterable[bytes]) -> ShareStateTopics:
    """Return the record that lists topics as deleting. The record is written before the states of the topics
    are deleted.
    """
    gone = {topic_id: _name(record, topic_id) for topic_id in topic_ids}
    return ShareStateTopics(
        _except(record.initializing, gone), _except(record.initialized, gone), {**record.deleting, **gone}
    )


def deleted(record: ShareStateTopics, topic_ids: Iterable[bytes]) -> ShareStateTopics:
    """Return the record that does not list these topics as deleting any more. The record is written after the
    states of the topics were deleted.
    """
    gone = set(topic_ids)
    return record._replace(
        deleting={topic_id: name for topic_id, name in record.deleting.items() if topic_id not in gone}
    )


def keys_of(group: str, topics: TopicsInfo) -> list[ShareKey]:
    """Return the partitions of `topics` as share partitions of the group, sorted by number within
    each topic.
    """
    return [
        ShareKey(group, names.topic_id_of(topic_id), number)
        for topic_id, topic in topics.items()
        for number in sorted(topic.partitions)
    ]


def all_of(record: ShareStateTopics) -> TopicsInfo:
    """Return the partitions that have a state, or for which the creation of a state was begun."""
    return _union(record.initialized, record.initializing)


def assignable(record: ShareStateTopics, counts: Mapping[bytes, int]) -> Assignment:
    """Return the partitions that may be assigned: partitions that exist and have a state."""
    found = {
        topic_id: frozenset(number for number in topic.partitions if number < counts[topic_id])
        for topic_id, topic in record.initialized.items()
        if topic_id in counts
    }
    return {topic_id: numbers for topic_id, numbers in found.items() if numbers}


def _name(record: ShareStateTopics, topic_id: bytes) -> str:
    known = record.initialized.get(topic_id) or record.initializing.get(topic_id)
    return record.deleting.get(topic_id, "") if known is None else known.name


def _union(one: TopicsInfo, other: TopicsInfo) -> TopicsInfo:
    found = dict(one)
    for topic_id, topic in other.items():
        before = found.get(topic_id, TopicPartitionsInfo(topic.name)).partitions
        found[topic_id] = TopicPartitionsInfo(topic.name, before | topic.partitions)
    return found


def _without(one: TopicsInfo, other: TopicsInfo) -> TopicsInfo:
    found = {
        topic_id: topic._replace(partitions=topic.partitions - other[topic_id].partitions)
        if topic_id in other
        else topic
        for topic_id, topic in one.items()
    }
    return {topic_id: topic for topic_id, topic in found.items() if topic.partitions} or NO_TOPICS


def _except(one: TopicsInfo, gone: Collection[bytes]) -> TopicsInfo:
    return {topic_id: topic for topic_id, topic in one.items() if topic_id not in gone}
