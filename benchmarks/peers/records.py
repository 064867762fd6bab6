"""The records that every peer gets: flights as JSON, a millisecond apart, and their checksum.

On disk: nothing. Threads: any.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

SEED = 20130101
FIRST_MS = 1_356_998_400_000
CARRIERS, ORIGINS, AIRPORTS, WORDS = (
    text.split()
    for text in (
        "UA B6 EV DL AA MQ US 9E WN VX",
        "EWR JFK LGA",
        "ATL ORD LAX BOS MCO CLT SFO FLL MIA DCA DFW RDU TPA DTW DEN",
        "gate held crew late weather slot de-icing fuel bags boarding taxi runway tower clear wind",
    )
)
TAIL = b'","remarks":"'

Row = tuple[int, bytes]
"""Timestamp in ms since the epoch, value."""

_STAMP = struct.Struct(">q")


@dataclass(frozen=True)
class Seen:
    """What a reader has seen: records, the sum of their timestamps, the bytes of their values. None: it
    looks at no timestamp.
    """

    count: int
    stamps: int | None
    size: int


@dataclass(frozen=True)
class Batch:
    """Records that are appended together: as lists, and as columns (uint8 of shape (n, bytes), int64)."""

    values: list[bytes]
    timestamps: list[int]
    column: NDArray[np.uint8]
    stamps: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.values)


class Records:
    """`count` records with values of exactly `value_bytes`, no two alike; the same each time."""

    def __init__(self, count: int, value_bytes: int) -> None:
        rng = random.Random(SEED)
        self.value_bytes = value_bytes
        words = " ".join(rng.choices(WORDS, k=20_000)).encode()
        self.values = [_flight(rng, i, value_bytes, words) for i in range(count)]
        self.timestamps = list(range(FIRST_MS, FIRST_MS + count))

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, first: int, last: int) -> list[Row]:
        return list(zip(self.timestamps[first:last], self.values[first:last], strict=True))

    @cached_property
    def _columns(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        flat = np.frombuffer(b"".join(self.values), np.uint8)
        return flat.reshape(-1, self.value_bytes), np.array(self.timestamps, np.int64)

    def batches(self, size: int, most: int | None = None) -> list[Batch]:
        """The first `most` records (None: all) in batches of `size`."""
        column, stamps = self._columns
        ends = range(0, min(len(self), most or len(self)), size)
        parts = [slice(first, first + size) for first in ends]
        return [Batch(self.values[p], self.timestamps[p], column[p], stamps[p]) for p in parts]

    def seen(self, count: int) -> Seen:
        """What a reader of the first `count` has to see."""
        return Seen(count, sum(self.timestamps[:count]), count * self.value_bytes)

    def checksum(self, count: int) -> tuple[int, int]:
        return checksum(zip(self.timestamps[:count], self.values[:count], strict=True))


def checksum(rows: Iterable[Row]) -> tuple[int, int]:
    """(count, CRC-32 of all timestamps and values in order)."""
    crc = count = 0
    for stamp, value in rows:
        crc = zlib.crc32(value, zlib.crc32(_STAMP.pack(stamp), crc))
        count += 1
    return count, crc


def drained(rows: Iterable[Row]) -> Seen:
    """Look at every record, one by one."""
    count = stamps = size = 0
    for stamp, value in rows:
        count += 1
        stamps += stamp
        size += len(value)
    return Seen(count, stamps, size)


def _flight(rng: random.Random, number: int, size: int, words: bytes) -> bytes:
    """One flight; remarks, a part of `words`, fill it up to `size` bytes."""
    fields = {
        "id": number,
        "flight": f"{rng.choice(CARRIERS)}{rng.randrange(1, 9000)}",
        "from": rng.choice(ORIGINS),
        "to": rng.choice(AIRPORTS),
        "delay": rng.randrange(-20, 180),
    }
    head = (
        json.dumps(fields, separators=(",", ":")).encode()[:-1]
        + b',"tail":"N'
        + b"%05d" % rng.randrange(10**5)
    )
    room = size - len(head) - len(TAIL) - 2
    if room < 0:
        return (head + b'"}').ljust(size)[:size]
    at = rng.randrange(len(words) - room)
    return head + TAIL + words[at : at + room] + b'"}'
