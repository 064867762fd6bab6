"""Kafka's ConsumerProtocol: subscriptions and assignments as bytes, versions 0 to 3.

Data of a newer version is read as version 3: no version may take fields away (Kafka: ConsumerProtocol).
Threads: any; the functions have no state.
"""

from __future__ import annotations

from collections.abc import Iterable

from segstore.coordinator.group.assignors.base import Subscription
from segstore.coordinator.structs import TopicPartition
from segstore.errors import InvalidArgumentError
from segstore.kafka_schema import Reader, array, byte_string, int16, int32, string

LAST_VERSION = 3
PROTOCOL_TYPE = "consumer"


def encode_subscription(subscription: Subscription, version: int = LAST_VERSION) -> bytes:
    """Encode all but `group_instance_id`, which is not part of the schema. Raises InvalidArgumentError."""
    _check(version)
    parts = [int16(version), array(map(string, subscription.topics)), byte_string(subscription.user_data)]
    if version >= 1:
        parts.append(_by_topic(subscription.owned))
    if version >= 2:
        parts.append(int32(subscription.generation))
    if version >= 3:
        parts.append(string(subscription.rack))
    return b"".join(parts)


def decode_subscription(data: bytes, group_instance_id: str | None = None) -> Subscription:
    """Decode what `encode_subscription` made; null user data becomes b"". Raises InvalidArgumentError."""
    try:
        read = Reader(data)
        version = _version(read)
        topics, user_data = read.array(read.string), read.nullable_bytes() or b""
        owned = _partitions(read) if version >= 1 else []
        generation = read.int32() if version >= 2 else -1
        rack = read.nullable_string() if version >= 3 else None
    except ValueError as error:
        raise InvalidArgumentError(f"no subscription of a consumer: {error}") from error
    return Subscription(tuple(topics), tuple(owned), user_data, generation, group_instance_id, rack)


def encode_assignment(
    partitions: Iterable[TopicPartition], user_data: bytes | None = b"", version: int = LAST_VERSION
) -> bytes:
    """Encode the partitions by topic; topics stand in the order of their first partitions. Raises
    InvalidArgumentError.
    """
    _check(version)
    return int16(version) + _by_topic(partitions) + byte_string(user_data)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Decode what `encode_assignment` made; empty bytes, which a member without an assignment has, give an
    empty list. Raises InvalidArgumentError.
    """
    if not data:
        return []
    try:
        read = Reader(data)
        _version(read)
        return _partitions(read)
    except ValueError as error:
        raise InvalidArgumentError(f"no assignment of a consumer: {error}") from error


def version_of(data: bytes) -> int:
    """Return the version of a subscription or an assignment, the last one that is known here for a newer
    one. Raises InvalidArgumentError.
    """
    try:
        return min(_version(Reader(data)), LAST_VERSION)
    except ValueError as error:
        raise InvalidArgumentError(f"no subscription of a consumer: {error}") from error


def _by_topic(partitions: Iterable[TopicPartition]) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return array(string(topic) + array(map(int32, held)) for topic, held in topics.items())


def _partitions(read: Reader) -> list[TopicPartition]:
    by_topic = read.array(lambda: (read.string(), read.array(read.int32)))
    return [TopicPartition(topic, partition) for topic, held in by_topic for partition in held]


def _version(read: Reader) -> int:
    version = read.int16()
    if version < 0:
        raise ValueError(f"version {version}")
    return version


def _check(version: int) -> None:
    if not 0 <= version <= LAST_VERSION:
        raise InvalidArgumentError(f"version={version}: must be 0 to {LAST_VERSION}")
