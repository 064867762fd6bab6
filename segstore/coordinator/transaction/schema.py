"""The bytes of a record in `__transaction_state`: TransactionLogKey and TransactionLogValue of Kafka 4.1.

Key: version 0, transactional id. Value: version 1 is flexible, it has compact lengths and tagged fields;
version 0 has neither. Version 1 is written, both are read.
Threads: any; functions without state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from segstore.coordinator.structs import TopicPartition
from segstore.coordinator.transaction.metadata import State, TransactionMetadata
from segstore.errors import CorruptRecordError
from segstore.kafka_schema import (
    Reader,
    array,
    begin_key,
    begin_value,
    int8,
    int16,
    int32,
    int64,
    string,
    tags,
)
from segstore.records.header import NO_PRODUCER_ID

FIRST_FLEXIBLE = LAST_VERSION = 1
_NO_TAGS = tags({})
_OURS = 10_000
"""A tag that is far from Kafka's, which passes over what it does not know."""

_TAGGED: Mapping[int, tuple[Callable[[int], bytes], Callable[[Reader], int], int]] = {
    0: (int64, Reader.int64, NO_PRODUCER_ID),  # the previous producer id
    1: (int64, Reader.int64, NO_PRODUCER_ID),  # the next one
    2: (int16, Reader.int16, 0),  # the version of the client
    _OURS: (int8, Reader.int8, 0),  # whether the producer is in another process
}
"""By tag, how a tagged field is written and read, and what it is where it is left out."""


def encode_key(transactional_id: str) -> bytes:
    """Return the key of a transactional id."""
    return int16(0) + string(transactional_id)


def decode_key(key: bytes) -> str | None:
    """Return the transactional id; None for a record of another kind. Raises ValueError for bytes that are
    no key.
    """
    read, version = begin_key(key, "a transaction")
    return None if version else read.string()


def encode_value(m: TransactionMetadata) -> bytes:
    """Encode the state of a transactional id; one that is empty has no list of partitions."""
    by_topic = None if m.state is State.EMPTY else map(_by_topic, _topics(m).items())
    values = m.previous_producer_id, m.next_producer_id, m.client_version, m.remote
    tagged = zip(_TAGGED.items(), values, strict=True)
    return b"".join(
        (
            int16(LAST_VERSION),
            int64(m.producer_id),
            int16(m.producer_epoch),
            int32(m.timeout_ms),
            int8(m.state),
            array(by_topic, compact=True),
            int64(m.updated_ms),
            int64(m.started_ms),
            tags({tag: encode(value) for (tag, (encode, _, none)), value in tagged if value != none}),
        )
    )


def _topics(m: TransactionMetadata) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(m.partitions):
        topics.setdefault(topic, []).append(partition)
    return topics


def _by_topic(held: tuple[str, list[int]]) -> bytes:
    topic, ids = held
    return string(topic, compact=True) + array(map(int32, ids), compact=True) + _NO_TAGS


def decode_value(value: bytes) -> TransactionMetadata:
    """Decode what `encode_value`, or Kafka, wrote. Raises UnsupportedVersionError; ValueError, which says
    what is wrong.
    """
    read, version = begin_value(value, "TransactionLogValue", LAST_VERSION)
    flexible = version >= FIRST_FLEXIBLE
    producer_id, epoch, timeout, state = read.int64(), read.int16(), read.int32(), State(read.int8())
    by_topic = read.array(lambda: _topic(read, flexible), flexible)
    updated, started = read.int64(), read.int64()
    tagged = _tagged(read.tags() if flexible else {})
    partitions = frozenset(partition for held in by_topic for partition in held)
    return TransactionMetadata(producer_id, epoch, timeout, state, partitions, started, updated, *tagged)


def _topic(read: Reader, flexible: bool) -> list[TopicPartition]:
    """Read a topic and the partitions of it that are part of the transaction."""
    topic, ids = read.string(flexible), read.array(read.int32, flexible)
    if flexible:
        read.tags()
    return [TopicPartition(topic, partition) for partition in ids]


def _tagged(found: Mapping[int, bytes]) -> list[int]:
    """Return the known tagged fields, in the order of their tags; others are passed over."""
    return [_field(tag, found[tag]) if tag in found else none for tag, (_, _, none) in _TAGGED.items()]


def _field(tag: int, data: bytes) -> int:
    read = Reader(data)
    value = _TAGGED[tag][1](read)
    if read.left:
        raise ValueError(f"tagged field {tag} has {len(data)} bytes")
    return value


def decode(key: bytes | None, value: bytes | None, where: str, offset: int) -> Any:
    """Return (transactional id, metadata or None for a tombstone), None for a record of another kind.
    Raises CorruptRecordError, which names the given place; UnsupportedVersionError.
    """
    try:
        transactional_id = decode_key(key or b"")
        if transactional_id is None:
            return None
        return transactional_id, None if value is None else decode_value(value)
    except ValueError as error:
        raise CorruptRecordError(where, 0, offset, f"no record of a transaction: {error}") from error
