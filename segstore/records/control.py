"""The record of a control batch, which says how a transaction ended; nothing is on disk.

Key: version int16 = 0, type int16. Value of a transaction's end: version int16 = 0, coordinator epoch int32
(org.apache.kafka.common.record.ControlRecordType, EndTransactionMarker). Big-endian. Threads: any; functions
without state.
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

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0


class Marker(NamedTuple):
    """How a producer's transaction ends: `kind` is ABORT or COMMIT."""

    producer_id: int
    producer_epoch: int
    kind: int
    coordinator_epoch: int


def end_marker(marker: Marker, timestamp: int) -> Encoded:
    """Return the control batch that ends a transaction, stamped `timestamp` (ms): one record, never
    compressed.
    """
    template = Template(TRANSACTIONAL_FLAG | CONTROL_FLAG, marker.producer_id, marker.producer_epoch)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return single(value, _KEY.pack(_VERSION, marker.kind), timestamp=timestamp, template=template)


def parse_control(
    key: bytes | None, value: bytes | None, *, file: str, position: int, offset: int
) -> tuple[int, int]:
    """Return (type, coordinator epoch) of a control record; the epoch is -1 where the type ends no
    transaction.

    Types (Kafka: ControlRecordType): 0 abort, 1 commit; others have nothing to do with producers. Raises
    CorruptRecordError, with the given place, for what is no control record.
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
