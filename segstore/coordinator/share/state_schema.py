"""The records of `__share_group_state`, in Kafka's schemas (KIP-932).

On disk: keys ShareSnapshotKey (type 0) and ShareUpdateKey (type 1); values ShareSnapshotValue and
ShareUpdateValue of version 0, which are flexible. A null value of a snapshot's key is a tombstone (Kafka:
ShareCoordinatorRecordHelpers).
Threads: any; functions without state.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import starmap
from typing import Any

from segstore import names
from segstore.coordinator.share.core.durable import StateDelta
from segstore.coordinator.share.core.values import Durable, StateBatch
from segstore.coordinator.share.keys import ShareKey
from segstore.errors import InvalidArgumentError
from segstore.protocol.codec import structs
from segstore.protocol.primitives import Packed, uvarint
from segstore.protocol.record_codec import decode_key, decode_value, encode_key, encode_value

VERSION = 0
UNKNOWN = -1
"""The value of a count that is not known; a record does not contain it."""


class StateKind(IntEnum):
    """The type of a record, which is the first int16 of its key."""

    SNAPSHOT = 0
    UPDATE = 1


_KEYS = {StateKind.SNAPSHOT: "ShareSnapshotKey", StateKind.UPDATE: "ShareUpdateKey"}
# The last byte of a batch is the number of tagged fields, 0.
_BATCH = struct.Struct(">qqbhx")
# The fields are version, snapshot epoch, leader epoch and start.
_UPDATE = struct.Struct(">hiiq")
# The fields are the number of tagged fields, the tag, the size and the count.
_COMPLETE = struct.Struct(">bbbi")
_UNTAGGED = b"\0"


@lru_cache(maxsize=4096)
def state_key(kind: StateKind, key: ShareKey) -> bytes:
    """Return the key of a record. Raises InvalidArgumentError if the group id is too long."""
    body = structs(_KEYS[kind])
    return encode_key(
        body(group_id=key.group, topic_id=names.topic_id_bytes(key.topic_id), partition=key.partition)
    )


def snapshot_value(state: Durable) -> bytes:
    """Return the value of a ShareSnapshot. Raises InvalidArgumentError if a number is out of range."""
    body = structs("ShareSnapshotValue")(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start,
        delivery_complete_count=state.complete,
        create_timestamp=state.created_ms,
        write_timestamp=state.written_ms,
        state_batches=_packed(state.batches),
    )
    return encode_value(body, VERSION)


def update_value(delta: StateDelta) -> bytes:
    """Return the value of a ShareUpdate. Raises InvalidArgumentError if a number is out of range."""
    snapshot_epoch, leader_epoch, start, complete, batches = delta
    try:
        # Each acknowledgement writes an update, and the generic codec would take ten times as long.
        parts = [_UPDATE.pack(VERSION, snapshot_epoch, leader_epoch, start), uvarint(len(batches) + 1)]
        parts += _stored(batches)
        parts.append(_UNTAGGED if complete == UNKNOWN else _COMPLETE.pack(1, 0, 4, complete))
    except struct.error as error:
        raise InvalidArgumentError(f"a ShareUpdate can't hold its numbers: {error}") from error
    return b"".join(parts)


def _packed(batches: Sequence[StateBatch]) -> Packed:
    try:
        return Packed(len(batches), VERSION, b"".join(_stored(batches)))
    except struct.error as error:
        raise InvalidArgumentError(f"a state batch can't hold its numbers: {error}") from error


def _stored(batches: Sequence[StateBatch]) -> Iterator[bytes]:
    return starmap(_BATCH.pack, batches)


def parse_state_key(kind: StateKind, data: bytes) -> ShareKey:
    """Return the ShareKey in the bytes of a record's key. Raises ValueError if they are no key of `kind`."""
    body = decode_key(_KEYS[kind], data)
    return ShareKey(body.group_id, names.topic_id_of(body.topic_id), body.partition)


def parse_snapshot(data: bytes) -> Durable:
    """Return the state in the bytes of a ShareSnapshot value. Raises UnsupportedVersionError, and ValueError
    if the bytes are no ShareSnapshot value.
    """
    body = decode_value("ShareSnapshotValue", data)
    return Durable(
        body.snapshot_epoch,
        body.state_epoch,
        body.leader_epoch,
        body.start_offset,
        body.delivery_complete_count,
        _parse_batches(body),
        body.create_timestamp,
        body.write_timestamp,
    )


def parse_update(data: bytes) -> StateDelta:
    """Return the delta in the bytes of a ShareUpdate value. Raises UnsupportedVersionError, and ValueError if
    the bytes are no ShareUpdate value.
    """
    body = decode_value("ShareUpdateValue", data)
    return StateDelta(
        body.snapshot_epoch,
        body.leader_epoch,
        body.start_offset,
        body.delivery_complete_count,
        _parse_batches(body),
    )


def _parse_batches(body: Any) -> tuple[StateBatch, ...]:
    return tuple(
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in body.state_batches
    )
