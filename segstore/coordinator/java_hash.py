"""Java's String.hashCode, by which Kafka chooses the partition of an internal topic for the records of a
group id or a transactional id.

Threads: any; the functions have no state.
"""

from __future__ import annotations

import struct

_PARTITIONS_OF_KAFKA = 50
"""Kafka's default of `offsets.topic.num.partitions` and `transaction.state.log.num.partitions`."""


def java_hash(text: str) -> int:
    """Return the value of Java's String.hashCode for `text`, a signed 32-bit integer. It is computed from
    UTF-16 code units.
    """
    data = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for unit in struct.unpack(f">{len(data) // 2}H", data):
        result = (31 * result + unit) & 0xFFFFFFFF
    return result - (1 << 32) if result >= 1 << 31 else result


def partition_of(text: str, partitions: int) -> int:
    """Return the absolute value of the hash of `text`, modulo `partitions`. As in Kafka's Utils.abs, the
    absolute value of the smallest int32 is 0.
    """
    hashed = java_hash(text)
    return (0 if hashed == -(1 << 31) else abs(hashed)) % partitions


def partition_among(text: str, ids: tuple[int, ...], setting: int) -> int:
    """Return the partition of an internal topic for the records of the id `text`. `ids` are the existing
    partitions, in order; `setting` is the number of partitions that a new topic gets.

    If `ids` has gaps, the store is a copy of a broker's directory, and the copy lacks partitions. The
    broker's number of partitions is then guessed: it is `setting`, or Kafka's default if `setting` is 1, but
    at least the largest id plus 1.
    """
    if ids == tuple(range(len(ids))):
        return partition_of(text, len(ids) or setting)
    return partition_of(text, max(setting if setting > 1 else _PARTITIONS_OF_KAFKA, ids[-1] + 1))
