"""Which partition a key goes to: the same one as in Kafka. Nothing on disk.

Threads: any; functions without state.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from segstore._native import ffi, lib
from segstore.errors import InvalidArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from segstore.records.column import Column

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF

NO_PARTITION = -1
"""What `partitions_for_keys` says of a null key, which may go anywhere."""


def murmur2(data: bytes) -> int:
    """The 32-bit hash of `data`, unsigned (Kafka: org.apache.kafka.common.utils.Utils.murmur2)."""
    size = len(data)
    h = _SEED ^ size
    for k in struct.unpack_from(f"<{size // 4}I", data):
        k = k * _M & _MASK
        h = (h * _M & _MASK) ^ ((k ^ k >> 24) * _M & _MASK)
    rest = data[size & ~3 :]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of 0 to `partitions` - 1 that Kafka's producer chooses (BuiltInPartitioner)."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def partitions_for_keys(keys: Sequence[bytes | None], partitions: int) -> NDArray[np.int32]:
    """`partition_for_key` of each, NO_PARTITION for a null key; a key that comes again is hashed once."""
    found: dict[bytes | None, int] = {
        key: partition_for_key(key, partitions) for key in set(keys) if key is not None
    }
    found[None] = NO_PARTITION
    return np.fromiter(map(found.__getitem__, keys), np.int32, len(keys))


def key_hashes(keys: Column) -> NDArray[np.int32]:
    """`murmur2` of each key without its sign bit, by C: modulo a number of partitions it is the partition.
    NO_PARTITION for a null key. InvalidArgumentError for a column that points outside its data.
    """
    hashes = np.empty(keys.n, np.int32)
    if keys.n and lib.seg_murmur2(keys.c, keys.n, ffi.from_buffer("int32_t[]", hashes)) < 0:
        raise InvalidArgumentError("keys: a column's offsets point outside its data, or fall")
    return hashes
