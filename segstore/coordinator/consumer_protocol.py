"""Kafka's ConsumerProtocol, versions 0 to 3: encodes and decodes subscriptions and assignments.

Bytes of a newer version are decoded as version 3, because no version may remove fields (Kafka:
ConsumerProtocol).
Threads: any; the functions have no state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from segstore.coordinator.group.assignors.base import MemberSubscription
from segstore.coordinator.structs import TopicPartition, by_topic
from segstore.errors import InvalidArgumentError
from segstore.protocol.codec import structs
from segstore.protocol.record_codec import decode_body, encode_value, prefix_of

LAST_VERSION = 3
PROTOCOL_TYPE = "consumer"
_SUBSCRIPTION, _ASSIGNMENT = "ConsumerProtocolSubscription", "ConsumerProtocolAssignment"


def encode_subscription(subscription: MemberSubscription, version: int = LAST_VERSION) -> bytes:
    """Encode a subscription. Its `group_instance_id` is omitted, because the schema has no such field. Raises
    InvalidArgumentError.
    """
    _check(version)
    kind = structs(_SUBSCRIPTION)
    body = kind(
        topics=subscription.topics,
        user_data=subscription.user_data,
        owned_partitions=_rows(kind.TopicPartition, subscription.owned),
        generation_id=subscription.generation,
        rack_id=subscription.rack,
    )
    return encode_value(body, version)


def decode_subscription(data: bytes, group_instance_id: str | None = None) -> MemberSubscription:
    """Decode the bytes of a subscription. If its user data is null, `user_data` is b"". Raises
    InvalidArgumentError.
    """
    try:
        body = decode_body(_SUBSCRIPTION, _version(data), data)
    except ValueError as error:
        raise InvalidArgumentError(f"no subscription of a consumer: {error}") from error
    return MemberSubscription(
        tuple(body.topics),
        tuple(_partitions(body.owned_partitions)),
        body.user_data or b"",
        body.generation_id,
        group_instance_id,
        body.rack_id,
    )


def encode_assignment(
    partitions: Iterable[TopicPartition], user_data: bytes | None = b"", version: int = LAST_VERSION
) -> bytes:
    """Encode an assignment. Its partitions are grouped by topic; the topics have the order in which they
    first occur in `partitions`. Raises InvalidArgumentError.
    """
    _check(version)
    kind = structs(_ASSIGNMENT)
    body = kind(assigned_partitions=_rows(kind.TopicPartition, partitions), user_data=user_data)
    return encode_value(body, version)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Decode an assignment, and return its partitions. If `data` is empty, because a member has no
    assignment, return an empty list. Raises InvalidArgumentError.
    """
    if not data:
        return []
    try:
        return _partitions(decode_body(_ASSIGNMENT, _version(data), data).assigned_partitions)
    except ValueError as error:
        raise InvalidArgumentError(f"no assignment of a consumer: {error}") from error


def version_of(data: bytes) -> int:
    """Return the version of an encoded subscription or assignment; LAST_VERSION if the version is newer.
    Raises InvalidArgumentError.
    """
    try:
        return _version(data)
    except ValueError as error:
        raise InvalidArgumentError(f"no subscription of a consumer: {error}") from error


def _rows(kind: Any, partitions: Iterable[TopicPartition]) -> list[Any]:
    return [kind(topic=topic, partitions=numbers) for topic, numbers in by_topic(partitions).items()]


def _partitions(rows: list[Any]) -> list[TopicPartition]:
    return [TopicPartition(row.topic, partition) for row in rows for partition in row.partitions]


def _version(data: bytes) -> int:
    version = prefix_of(data)
    if version < 0:
        raise InvalidArgumentError(f"version {version}")
    return min(version, LAST_VERSION)


def _check(version: int) -> None:
    if not 0 <= version <= LAST_VERSION:
        raise InvalidArgumentError(f"version={version}: must be 0 to {LAST_VERSION}")
