"""Adapts assignors that were written for kafka-python, as classes or objects, to `Assignor`.

Threads: any threads that the adapted object supports. The object's methods are called as in kafka-python:
`assign(cluster, members)`, `metadata(topics)`, `on_assignment(assignment, generation)`
(kafka.coordinator.assignors.abstract).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from segstore.coordinator.group.assignors.base import Assignment, Members, MemberSubscription, Partitions
from segstore.coordinator.structs import TopicPartition, by_topic

METHODS = ("assign", "metadata", "on_assignment")
COOPERATIVE = 1  # the value of COOPERATIVE in kafka-python's RebalanceProtocol


class OfTopic(NamedTuple):
    """The partitions of one topic."""

    topic: str
    partitions: list[int]


@dataclass(frozen=True)
class KafkaPythonAssignment:
    """A substitute for kafka-python's ConsumerProtocolAssignment, with the attributes that assignors use."""

    assigned_partitions: list[OfTopic]
    user_data: bytes = b""
    version: int = 0

    @property
    def assignment(self) -> list[OfTopic]:
        return self.assigned_partitions

    def partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic, number) for topic, numbers in self.assigned_partitions for number in numbers
        ]


@dataclass(frozen=True)
class KafkaPythonSubscription:
    """A substitute for kafka-python's ConsumerProtocolSubscription."""

    topics: list[str]
    user_data: bytes
    owned_partitions: list[OfTopic]
    generation_id: int
    version: int = 3
    rack_id: str | None = None


class KafkaPythonMember(NamedTuple):
    """A substitute for kafka-python's JoinGroupResponseMember."""

    member_id: str
    group_instance_id: str | None
    metadata: KafkaPythonSubscription


class KafkaPythonCluster:
    """A substitute for kafka-python's ClusterMetadata, with topics and their partitions only."""

    def __init__(self, partitions: Mapping[str, Sequence[int]]) -> None:
        self._partitions = {topic: set(numbers) for topic, numbers in partitions.items()}

    def topics(self, exclude_internal_topics: bool = True) -> set[str]:
        return set(self._partitions)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return self._partitions.get(topic)

    available_partitions_for_topic = partitions_for_topic


class Foreign:
    """An `Assignor` that calls an assignor written for kafka-python."""

    def __init__(self, assignor: Any) -> None:
        self._assignor = assignor() if isinstance(assignor, type) else assignor
        self.name: str = self._assignor.name
        supported: Iterable[int] = getattr(self._assignor, "supported_protocols", tuple)()
        self.cooperative = COOPERATIVE in supported and 0 not in supported

    def assign(self, partitions: Partitions, members: Members) -> Assignment:
        subscribed = {topic for subscription in members.values() for topic in subscription.topics}
        cluster = KafkaPythonCluster(
            {topic: numbers for topic, numbers in partitions.items() if topic in subscribed}
        )
        kafka_members = [
            KafkaPythonMember(member, subscription.group_instance_id, _metadata(subscription))
            for member, subscription in members.items()
        ]
        found = self._assignor.assign(cluster, kafka_members)
        return {member: sorted(_partitions(found[member])) if member in found else [] for member in members}

    def user_data(self, topics: Sequence[str], owned: Iterable[TopicPartition], generation: int) -> bytes:
        if generation >= 0:
            self._assignor.on_assignment(KafkaPythonAssignment(_by_topic(owned)), generation)
        data = self._assignor.metadata(set(topics)).user_data
        encoded: bytes = data.encode() if hasattr(data, "encode") else bytes(data or b"")
        return encoded


def _metadata(subscription: MemberSubscription) -> KafkaPythonSubscription:
    return KafkaPythonSubscription(
        list(subscription.topics),
        subscription.user_data,
        _by_topic(subscription.owned),
        subscription.generation,
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> list[OfTopic]:
    return [OfTopic(topic, numbers) for topic, numbers in by_topic(partitions).items()]


def _partitions(assignment: Any) -> Iterator[TopicPartition]:
    for topic, numbers in assignment.assignment:
        yield from (TopicPartition(topic, number) for number in numbers)
