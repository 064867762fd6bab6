"""Sticky: as even as can be, and of those assignments one that moves few partitions. Nothing on disk.

Threads: any; a `Balancer` belongs to one call. KIP-54; Kafka: AbstractStickyAssignor,
its general algorithm, as kafka-python has it; ties are broken by name, so that every leader answers the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from segstore.coordinator.group.assignors.balancer import Balancer
from segstore.coordinator.group.assignors.base import Assignment, Members, Partitions
from segstore.coordinator.kafka_schema import Reader, array, int32, string
from segstore.coordinator.structs import TopicPartition

_VERSION_SIZE = 2
"""Bytes that kafka-python 3 puts before the schema, and Kafka does not."""

Claim = tuple[int, list[TopicPartition]]
"""What a member says that it was given, and in which generation (-1: not known)."""


class StickyAssignor:
    """Members give up all before a rebalance, and tell the leader what they had in their user data."""

    name = "sticky"
    cooperative = False

    def assign(self, partitions: Partitions, members: Members) -> Assignment:
        claims = {member: decode_user_data(told.user_data) for member, told in members.items()}
        return Balancer(partitions, members, claims).run()

    def user_data(self, topics: Sequence[str], owned: Iterable[TopicPartition], generation: int) -> bytes:
        return encode_user_data(owned, generation)


def encode_user_data(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """StickyAssignorUserData, version 1: the schema has no version field."""
    topics: dict[str, list[int]] = {}
    for topic, partition in owned:
        topics.setdefault(topic, []).append(partition)
    held = array(string(topic) + array(map(int32, numbers)) for topic, numbers in topics.items())
    return held + int32(generation)


def decode_user_data(data: bytes) -> Claim:
    """What a member had; nothing where it can't be told (Kafka: ignored too)."""
    for skip in (0, _VERSION_SIZE):
        try:
            return _decode(Reader(data[skip:]))
        except ValueError:
            continue
    return -1, []


def _decode(read: Reader) -> Claim:
    by_topic = read.array(lambda: (read.string(), read.array(read.int32)))
    generation = read.int32() if read.left else -1  # version 0 has none
    if read.left:
        raise ValueError(f"{read.left} bytes are left")
    return generation, [TopicPartition(topic, number) for topic, numbers in by_topic for number in numbers]
