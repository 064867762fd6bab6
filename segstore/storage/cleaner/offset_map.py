"""The offset map: the latest offset of every key in a part of a log, in bounded memory. Nothing is on disk.

As in Kafka's SkimpyOffsetMap, a key takes 24 bytes: a hash of 16 bytes instead of the key, and the offset.
Each map draws a new seed for the hash, so that nobody can make keys with equal hashes. Threads: one at a
time; the C functions work on whole columns without the GIL.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from segstore._native import ffi, held, lib
from segstore.arrays import np
from segstore.records import Records
from segstore.records.records import HEADERS_AT, KEY_AT, KEY_LEN, OFFSET, TIMESTAMP, VALUE_AT, VALUE_LEN

if TYPE_CHECKING:
    from numpy.typing import NDArray

SLOT = 24
"""Bytes of memory per key."""
_LEAST = 64


class OffsetMap:
    """A map that takes at most `memory` bytes, and less if `keys`, the largest possible number of keys, needs
    less. At most the fraction `load_factor` of its slots is used.

    `latest` is the last offset up to which the map has all keys (-1: none).
    """

    def __init__(
        self, memory: int, load_factor: float, keys: int, seed: tuple[int, int] | None = None
    ) -> None:
        slots = max(min(memory // SLOT, 2 * keys), _LEAST)
        # np.empty, because np.zeros gets no huge pages; with huge pages the map is three times as fast.
        self._slots: NDArray[np.uint64] = np.empty(slots * SLOT // 8, np.uint64)
        self._slots.fill(0)
        self.c = ffi.new("seg_offset_map *")
        self.c.slots = held("uint8_t[]", self._slots)
        self.c.n, self.c.limit = slots, max(1, min(int(slots * load_factor), slots - 1))
        self.c.seed = seed or (secrets.randbits(64), secrets.randbits(64))
        self.latest = -1

    def __len__(self) -> int:
        return int(self.c.used)

    def put(self, records: Records, from_offset: int = 0) -> int:
        """Put the keys of the records from offset `from_offset` on into the map. Return the number of records
        before the first record for which the map has no room (the number of all records if there is room).
        """
        c = columns(records)
        done = lib.seg_map_put(
            self.c, records.arena, len(records.arena), c.key_at, c.key_len, c.offsets, c.n, from_offset
        )
        return checked(done)

    def keep(self, records: Records) -> tuple[NDArray[np.uint8], int]:
        """Return (flag of each record, number of dropped records without a key). The flag is SEG_KEEP if the
        offset is above `latest`, the last offset that the map covers; else SEG_DROP if the key has a later
        record, or the record has no key; else SEG_LATEST.
        """
        c, keyless = columns(records), ffi.new("int64_t *")
        keep: NDArray[np.uint8] = np.empty(max(c.n, 1), np.uint8)
        done = lib.seg_map_keep(
            self.c, records.arena, len(records.arena), c.key_at, c.key_len, c.offsets, c.n, self.latest,
            ffi.from_buffer("uint8_t[]", keep), keyless,
        )  # fmt: skip
        checked(done)
        return keep, int(keyless[0])


def columns(records: Records) -> Any:
    """Return the columns of decoded records as a `seg_columns *`. It is valid while `records` is
    referenced.
    """
    c, matrix = ffi.new("seg_columns *"), records._matrix
    c.n = n = matrix.shape[1]
    if n:
        first, stride = ffi.cast("int64_t *", matrix.ctypes.data), matrix.strides[0] >> 3
        c.offsets, c.timestamps = first + OFFSET * stride, first + TIMESTAMP * stride
        c.key_at, c.key_len = first + KEY_AT * stride, first + KEY_LEN * stride
        c.value_at, c.value_len = first + VALUE_AT * stride, first + VALUE_LEN * stride
        c.headers_at = first + HEADERS_AT * stride
    return c


def checked(result: int) -> int:
    """Return `result`, the result of a C function that can't fail on columns of decoded records. Raise
    AssertionError if the function failed.
    """
    if result < 0:
        raise AssertionError(f"decoded records can't be compacted: {result}")
    return result
