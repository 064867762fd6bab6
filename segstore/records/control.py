"""The record of a control batch: a transaction marker, or the first or last record of a metadata snapshot;
nothing is on disk.

Key: version int16 = 0, type int16. Value of a transaction marker: version int16 = 0, coordinator epoch int32
(org.apache.kafka.common.record.ControlRecordType, EndTransactionMarker). Value of a snapshot's header:
version int16 = 0, timestamp of the last record of the log that the snapshot covers, int64 ms. Value of a
snapshot's footer: version int16 = 0. The values of header and footer end with a byte 0, which stands for no
tagged fields (KIP-630: SnapshotHeaderRecord, SnapshotFooterRecord).

Big-endian. Threads: any; functions without state.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from segstore.errors import CorruptRecordError
from segstore.records.encode import single
from segstore.records.encoded import Encoded, Template
from segstore.records.header import CONTROL_FLAG, NO_EPOCH, TRANSACTIONAL_FLAG

ABORT = 0
COMMIT = 1
SNAPSHOT_HEADER = 3
SNAPSHOT_FOOTER = 4

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_HEADER = struct.Struct(">hqB")
_FOOTER = struct.Struct(">hB")
_VERSION = 0


class Marker(NamedTuple):
    """A marker that completes a producer's transaction; `kind` is ABORT or COMMIT."""

    producer_id: int
    producer_epoch: int
    kind: int
    coordinator_epoch: int


def end_marker(marker: Marker, timestamp: int) -> Encoded:
    """Return the control batch that commits or aborts a transaction. It has one record, with `timestamp`
    (ms), and is never compressed.
    """
    template = Template(TRANSACTIONAL_FLAG | CONTROL_FLAG, marker.producer_id, marker.producer_epoch)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return single(value, _KEY.pack(_VERSION, marker.kind), timestamp=timestamp, template=template)


def parse_control(
    key: bytes | None, value: bytes | None, *, file: str, position: int, offset: int
) -> tuple[int, int]:
    """Return (type, coordinator epoch) of a control record; the epoch is -1 if the record is not a
    transaction marker.

    Types (Kafka: ControlRecordType): 0 abort, 1 commit; other types don't concern producers. Raises
    CorruptRecordError, with the given file, position and offset, if the record is no control record.
    """
    if key is None or len(key) < _KEY.size or key[0] & 0x80:
        raise CorruptRecordError(file, position, offset, "a control record's key is no version and type")
    _, kind = _KEY.unpack_from(key)
    if kind not in (ABORT, COMMIT):
        return kind, NO_EPOCH
    if value is None or len(value) < _VALUE.size or value[0] & 0x80:
        raise CorruptRecordError(file, position, offset, "an end transaction marker has no coordinator epoch")
    _, coordinator_epoch = _VALUE.unpack_from(value)
    return kind, coordinator_epoch


def snapshot_header(last_contained_timestamp: int, timestamp: int, leader_epoch: int) -> Encoded:
    """Return the control batch that begins a snapshot, at offset 0 with `timestamp` (ms).
    `last_contained_timestamp` (ms) belongs to the last record of the log that the snapshot covers.
    """
    value = _HEADER.pack(_VERSION, last_contained_timestamp, 0)
    return _of_snapshot(SNAPSHOT_HEADER, value, timestamp, 0, leader_epoch)


def snapshot_footer(timestamp: int, base_offset: int, leader_epoch: int) -> Encoded:
    """Return the control batch that ends a snapshot; a snapshot without this batch is incomplete."""
    return _of_snapshot(SNAPSHOT_FOOTER, _FOOTER.pack(_VERSION, 0), timestamp, base_offset, leader_epoch)


def _of_snapshot(kind: int, value: bytes, timestamp: int, base_offset: int, leader_epoch: int) -> Encoded:
    template = Template(CONTROL_FLAG, base_offset=base_offset, leader_epoch=leader_epoch)
    return single(value, _KEY.pack(_VERSION, kind), timestamp=timestamp, template=template)


def parse_snapshot_header(value: bytes | None) -> int:
    """Return the timestamp (ms) of the last record that a snapshot covers, decoded from the value of the
    snapshot's header. Raises ValueError.
    """
    if value is None or len(value) < _HEADER.size or value[0] & 0x80:
        raise ValueError("a snapshot's header has no timestamp")
    timestamp: int = _HEADER.unpack_from(value)[1]
    return timestamp
