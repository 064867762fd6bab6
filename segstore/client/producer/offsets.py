"""Checks of the offsets and the group that a transaction commits. Nothing on disk.

Threads: any; functions without state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import InvalidArgumentError, InvalidGroupIdError, InvalidTypeError


def offsets_of(given: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """InvalidTypeError, InvalidArgumentError for what is no {TopicPartition: OffsetAndMetadata}."""
    if not isinstance(given, Mapping):
        raise InvalidTypeError(
            f"offsets is {type(given).__name__}: allowed is {{TopicPartition: OffsetAndMetadata}}"
        )
    return {_partition(key): _offset(key, value) for key, value in given.items()}


def _partition(key: Any) -> TopicPartition:
    if not isinstance(key, tuple) or len(key) != 2 or not isinstance(key[0], str) or type(key[1]) is not int:
        raise InvalidTypeError(f"offsets has {key!r:.80} for a key: allowed is a TopicPartition")
    return TopicPartition(*key)


def _offset(key: Any, value: Any) -> OffsetAndMetadata:
    offset = getattr(value, "offset", None)
    if type(offset) is not int:
        raise InvalidTypeError(f"offsets[{key!r:.80}] is {value!r:.80}: allowed is an OffsetAndMetadata")
    if offset < 0:
        raise InvalidArgumentError(f"offsets[{key!r:.80}] is {offset}: must be at least 0")
    return OffsetAndMetadata(offset, value.metadata or "", getattr(value, "leader_epoch", -1))


def group_of(given: Any) -> ConsumerGroupMetadata:
    """From a group's id, or what `Consumer.group_metadata()` gives. InvalidTypeError, InvalidGroupIdError."""
    if isinstance(given, str):
        given = ConsumerGroupMetadata(given)
    if not isinstance(given, ConsumerGroupMetadata):
        raise InvalidTypeError(
            f"group_metadata is {type(given).__name__}: allowed is a group's id or a ConsumerGroupMetadata"
        )
    if not isinstance(given.group_id, str) or not given.group_id:
        raise InvalidGroupIdError(f"group_id={given.group_id!r}: must be a str that is not empty")
    return given
