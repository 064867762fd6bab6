"""Which share partitions have a durable state: the steps by which a share group makes and deletes it
(KIP-932; Kafka: GroupMetadataManager, ShareGroupStatePartitionMetadata).

A step is noted in the group's record of partitions, then done in the state log, then noted as done: a crash
between leaves the note, by which the step is done again. Threads: any; functions without state.
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
"""Start offsets of new share partitions: the group's reset decides, or the beginning of a partition that was
added to a topic of the group.
"""


class DurableStates(Protocol):
    """The durable states of share partitions; see `StateLog`."""

    def read(self, key: ShareKey, /) -> Durable | None:
        """Return the state; None for a share partition that has none."""

    def initialise(self, states: Mapping[ShareKey, tuple[int, int]], /) -> None:
        """Begin states anew with these state epochs and start offsets. Raises FencedStateEpochError."""

    def delete(self, keys: Collection[ShareKey], /) -> None:
        """Delete states."""

    def keys_of(self, group: str, /) -> Collection[ShareKey]:
        """Return the share partitions of a group that have a state."""


def missing(held: ShareStateTopics, wanted: Assignment, topics: Mapping[bytes, str]) -> TopicsInfo:
    """Return the partitions of `wanted` that have no state, or whose state was begun and not finished."""
    found: dict[bytes, TopicPartitionsInfo] = {}
    for topic_id, numbers in wanted.items():
        lacking = numbers - held.initialized.get(topic_id, TopicPartitionsInfo("")).partitions
        if lacking:
            found[topic_id] = TopicPartitionsInfo(topics[topic_id], lacking)
    return found


def starts(group: str, held: ShareStateTopics, new: TopicsInfo) -> dict[ShareKey, int]:
    """Return the start offset of each new share partition: what is produced to a partition that is added to a
    topic of the group, before the group sees it, must not be skipped.
    """
    return {
        key: FIRST_OFFSET if topic_id in held.initialized else UNKNOWN_START
        for topic_id, topic in new.items()
        for key in keys_of(group, {topic_id: topic})
    }


def begun(held: ShareStateTopics, new: TopicsInfo) -> ShareStateTopics:
    """Return the record before states are made."""
    return held._replace(initializing=_union(held.initializing, new))


def done(held: ShareStateTopics, new: TopicsInfo) -> ShareStateTopics:
    """Return the record after states were made."""
    return held._replace(
        initializing=_without(held.initializing, new), initialized=_union(held.initialized, new)
    )


def deleting(held: ShareStateTopics, topic_ids: Iterable[bytes]) -> ShareStateTopics:
    """Return the record before the states of topics are deleted."""
    gone = {topic_id: _name(held, topic_id) for topic_id in topic_ids}
    return ShareStateTopics(
        _except(held.initializing, gone), _except(held.initialized, gone), {**held.deleting, **gone}
    )


def deleted(held: ShareStateTopics, topic_ids: Iterable[bytes]) -> ShareStateTopics:
    """Return the record after the states of topics were deleted."""
    gone = set(topic_ids)
    return held._replace(
        deleting={topic_id: name for topic_id, name in held.deleting.items() if topic_id not in gone}
    )


def keys_of(group: str, topics: TopicsInfo) -> list[ShareKey]:
    """Return the share partitions of a group, in order."""
    return [
        ShareKey(group, names.topic_id_of(topic_id), number)
        for topic_id, topic in topics.items()
        for number in sorted(topic.partitions)
    ]


def all_of(held: ShareStateTopics) -> TopicsInfo:
    """Return the partitions that have a state, or may have one."""
    return _union(held.initialized, held.initializing)


def assignable(held: ShareStateTopics, counts: Mapping[bytes, int]) -> Assignment:
    """Return the partitions that members may have: those with a state, of topics that are there."""
    found = {
        topic_id: frozenset(number for number in topic.partitions if number < counts[topic_id])
        for topic_id, topic in held.initialized.items()
        if topic_id in counts
    }
    return {topic_id: numbers for topic_id, numbers in found.items() if numbers}


def _name(held: ShareStateTopics, topic_id: bytes) -> str:
    known = held.initialized.get(topic_id) or held.initializing.get(topic_id)
    return held.deleting.get(topic_id, "") if known is None else known.name


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
