"""Java's String.hashCode, by which Kafka chooses the partition of a group id or a transactional id.

Threads: any; the functions have no state.
"""

from __future__ import annotations

import struct


def java_hash(text: str) -> int:
    """Return String.hashCode of `text`: over UTF-16 code units, 32 bits, signed."""
    data = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for unit in struct.unpack(f">{len(data) // 2}H", data):
        result = (31 * result + unit) & 0xFFFFFFFF
    return result - (1 << 32) if result >= 1 << 31 else result


def partition_of(text: str, partitions: int) -> int:
    """Return Kafka's Utils.abs of the hash, modulo `partitions`; the smallest int32 counts as 0."""
    hashed = java_hash(text)
    return (0 if hashed == -(1 << 31) else abs(hashed)) % partitions
