"""Owns the bytes of <offset>.snapshot: what was known of every producer when the log ended at <offset>.

Version int16 = 1, CRC-32C uint32 of all that follows, number of entries int32, then 46 bytes an entry,
big-endian (org.apache.kafka.storage.internals.log.ProducerStateManager.readSnapshot; message
ProducerSnapshot): producer id int64, epoch int16, last sequence int32, last offset int64, offset delta
int32, timestamp int64, coordinator epoch int32, current transaction's first offset int64.

Threads: any; functions without state.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from crc32c import crc32c

from segstore.errors import CorruptCheckpointError

VERSION = 1

_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_FROM = 6


class SnapshotEntry(NamedTuple):
    """One producer. -1 stands for none; `offset_delta` is last less first offset of its last batch."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def format_snapshot(entries: Iterable[SnapshotEntry]) -> bytes:
    """The content of a snapshot file, in order of producer id."""
    packed = [_ENTRY.pack(*entry) for entry in sorted(entries)]
    body = struct.pack(">i", len(packed)) + b"".join(packed)
    return struct.pack(">hI", VERSION, crc32c(body)) + body


def parse_snapshot(data: bytes, where: str) -> list[SnapshotEntry]:
    """The entries. CorruptCheckpointError, which names `where` (Kafka: CorruptSnapshotException)."""
    if len(data) < _HEADER.size:
        raise CorruptCheckpointError(where, 0, f"{len(data)} bytes are no producer snapshot")
    version, crc, count = _HEADER.unpack_from(data)
    if version != VERSION:
        raise CorruptCheckpointError(where, 0, f"version {version} is unknown, {VERSION} is known")
    if crc32c(data[_CRC_FROM:]) != crc:
        raise CorruptCheckpointError(where, 0, "the CRC does not match the content")
    if len(data) != _HEADER.size + count * _ENTRY.size:
        raise CorruptCheckpointError(where, 0, f"{count} entries do not make {len(data)} bytes")
    entries = [SnapshotEntry(*fields) for fields in _ENTRY.iter_unpack(data[_HEADER.size :])]
    ids = {entry.producer_id for entry in entries}
    if len(ids) != count or min(ids, default=0) < 0:
        raise CorruptCheckpointError(where, 0, "a producer id is negative, or there twice")
    return entries
