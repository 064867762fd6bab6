"""The bytes of a record in `__transaction_state`: TransactionLogKey and TransactionLogValue of Kafka.

A key has version 0 and the transactional id. A value is written in version 1, which is flexible; version 0 is
read, too. A header of the record has `TransactionMetadata.begins`; Kafka ignores the header. Threads: any;
functions without state.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from segstore import names
from segstore.coordinator.structs import TopicPartition, by_topic
from segstore.coordinator.transaction.metadata import Begin, TransactionMetadata, TransactionState
from segstore.errors import CorruptRecordError
from segstore.protocol.codec import packed, structs
from segstore.protocol.primitives import Packed
from segstore.protocol.record_codec import decode_key as read_key
from segstore.protocol.record_codec import decode_value as read_value
from segstore.protocol.record_codec import encode_key as key_bytes
from segstore.protocol.record_codec import encode_value as value_bytes
from segstore.protocol.record_codec import kind_of

VERSION = 1
BEGINS = "segstore.begins"
# The header has one `_BEGIN` for each partition, sorted by partition: topic id, offset, leader epoch.
_BEGIN = struct.Struct(">16sqi")
_NO_RECORD = -1  # the offset of a partition that has no record of the transaction


@lru_cache(maxsize=1024)
def encode_key(transactional_id: str) -> bytes:
    """Return the key of a transactional id."""
    return key_bytes(structs("TransactionLogKey")(transactional_id=transactional_id))


def decode_key(key: bytes) -> str | None:
    """Return the transactional id, or None for a record of another type. Raises ValueError if the bytes are
    no key.
    """
    if kind_of(key, "a transaction"):
        return None
    transactional_id: str = read_key("TransactionLogKey", key).transactional_id
    return transactional_id


def encode_value(m: TransactionMetadata) -> bytes:
    """Encode the state of a transactional id. In state EMPTY the list of partitions is null."""
    body = structs("TransactionLogValue")(
        producer_id=m.producer_id,
        previous_producer_id=m.previous_producer_id,
        next_producer_id=m.next_producer_id,
        producer_epoch=m.producer_epoch,
        transaction_timeout_ms=m.timeout_ms,
        transaction_status=m.state,
        transaction_partitions=None if m.state is TransactionState.EMPTY else _rows(m.partitions),
        transaction_last_update_timestamp_ms=m.updated_ms,
        transaction_start_timestamp_ms=m.started_ms,
        client_transaction_version=m.client_version,
        remote=m.remote,
    )
    return value_bytes(body, VERSION)


# The rows are cached, because the states of a transaction, and often of the next transaction, have the same
# partitions.
@lru_cache(maxsize=64)
def _rows(partitions: frozenset[TopicPartition]) -> Packed:
    """Return the encoded partitions of a state."""
    kind = structs("TransactionLogValue").PartitionsSchema
    topics = by_topic(sorted(partitions)).items()
    rows = [kind(topic=topic, partition_ids=numbers) for topic, numbers in topics]
    return packed("TransactionLogValue", VERSION, rows)


def decode_value(value: bytes) -> TransactionMetadata:
    """Decode a state that this store or Kafka wrote. Raises UnsupportedVersionError, and ValueError if the
    bytes are not a state.
    """
    body = read_value("TransactionLogValue", value)
    rows = body.transaction_partitions or []
    return TransactionMetadata(
        body.producer_id,
        body.producer_epoch,
        body.transaction_timeout_ms,
        TransactionState(body.transaction_status),
        frozenset(TopicPartition(row.topic, number) for row in rows for number in row.partition_ids),
        body.transaction_start_timestamp_ms,
        body.transaction_last_update_timestamp_ms,
        body.previous_producer_id,
        body.next_producer_id,
        body.client_transaction_version,
        body.remote,
    )


def encode_headers(m: TransactionMetadata) -> list[tuple[str, bytes]]:
    """Return the headers of a state's record as (name, value) pairs; [] if the state has no `begins`."""
    if m.begins is None:
        return []
    begins = {each.at: each for each in m.begins}
    nowhere = (bytes(16), _NO_RECORD, -1)
    rows = ((_place(begins[at]) if at in begins else nowhere) for at in sorted(m.partitions))
    return [(BEGINS, b"".join(_BEGIN.pack(*each) for each in rows))]


def _place(begin: Begin) -> tuple[bytes, int, int]:
    topic_id = names.topic_id_bytes(begin.topic_id) if begin.topic_id else bytes(16)
    return topic_id, begin.offset, begin.leader_epoch


def decode_begins(
    m: TransactionMetadata, headers: Iterable[tuple[str, bytes | None]]
) -> frozenset[Begin] | None:
    """Return the `begins` of a state, decoded from its record's headers; None if the header is missing or
    malformed.
    """
    packed = dict(headers).get(BEGINS) or b""
    if not packed or len(packed) != _BEGIN.size * len(m.partitions):
        return None
    places = zip(sorted(m.partitions), _BEGIN.iter_unpack(packed), strict=True)
    begins = (Begin(at, names.topic_id_of(topic_id), *where) for at, (topic_id, *where) in places)
    return frozenset(each for each in begins if each.offset != _NO_RECORD)


def decode(key: bytes | None, value: bytes | None, where: str, offset: int) -> Any:
    """Return (transactional id, metadata or None for a tombstone), or None for a record of another type.
    Raises UnsupportedVersionError, and CorruptRecordError, whose text has `where`, if the record can't be
    decoded.
    """
    try:
        transactional_id = decode_key(key or b"")
        if transactional_id is None:
            return None
        return transactional_id, None if value is None else decode_value(value)
    except ValueError as error:
        raise CorruptRecordError(where, 0, offset, f"no record of a transaction: {error}") from error
