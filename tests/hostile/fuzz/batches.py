"""Makes record batches as first inputs, and changes them with knowledge of their fields. It only reads
files.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import replace

from crc32c import crc32c
from oracle import HEADER, Batch, Record, encode_batch, encode_records
from partitions import GOLDEN, SHARED

from fuzz.mutate import ANY, INTERESTING, Mutator, overwrite
from segstore.records.codecs import compress

FIELDS = {
    "base offset": (0, 8), "length": (8, 4), "leader epoch": (12, 4), "magic": (16, 1), "crc": (17, 4),
    "attributes": (21, 2), "last offset delta": (23, 4), "base timestamp": (27, 8), "max timestamp": (35, 8),
    "producer id": (43, 8), "producer epoch": (51, 2), "base sequence": (53, 4), "count": (57, 4),
}  # fmt: skip
_MOST_SEED = 6000  # bytes of a golden batch that is taken

_PLAIN = Batch(
    10, 4, 0, 3, 1000, 2000, 7, 1, 5,
    [
        Record(10, 1000, b"key", b"value", []),
        Record(11, 500, None, b"", [(b"h", None), (b"\xff", b"x")]),
        Record(13, 2000, b"", None, [(b"", b"")] * 3),
    ],
)  # fmt: skip


_LATER = replace(_PLAIN, base_offset=30, records=[r._replace(offset=r.offset + 20) for r in _PLAIN.records])
_LONG = [
    Record(10 + i, 1000 + i, b"k" * (i % 70), b"v" * (i * 3), [(b"n", b"v")] * (i % 3)) for i in range(40)
]
PLAIN_ONES = (_PLAIN, replace(_PLAIN, records=[]), replace(_PLAIN, last_offset_delta=39, records=_LONG))


def _marker(kind: int) -> Batch:
    record = Record(20, 9, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 3), [])
    return Batch(20, 4, 0x30, 0, 9, 9, 7, 1, -1, [record])


def _compressed(codec: int, batch: Batch = _PLAIN) -> bytes:
    payload = compressed_bytes(codec, encode_records(batch))
    return encode_batch(replace(batch, attributes=batch.attributes | codec), payload)


def compressed_bytes(codec: int, data: bytes) -> bytes:
    return bytes(compress(codec, data))


def bomb(codec: int, size: int = 1 << 29) -> bytes:
    """A batch whose one record's bytes would become `size` once decompressed: above what is allowed."""
    payload = compressed_bytes(codec, bytes(size))
    return encode_batch(replace(_PLAIN, attributes=codec), payload, 1)


def made() -> list[bytes]:
    """Batches of every kind: plain, each codec, markers, LogAppendTime, empty ones, extremes, several."""
    wide = replace(_PLAIN, base_offset=(1 << 63) - 20, last_offset_delta=3, base_timestamp=-(1 << 63))
    wide = replace(wide, records=[Record(wide.base_offset, wide.base_timestamp, b"k", b"v", [])])
    batches = [
        _PLAIN, _marker(0), _marker(1), _marker(2), wide, _LATER,
        replace(_PLAIN, attributes=0x08), replace(_PLAIN, attributes=0x50, base_timestamp=77),
        replace(_PLAIN, records=[]), replace(_PLAIN, records=[], producer_id=9, last_offset_delta=0),
    ]  # fmt: skip
    encoded = [encode_batch(batch) for batch in batches] + [_compressed(codec) for codec in range(1, 5)]
    joined = encoded[0] + encoded[1] + _compressed(4, _LATER)
    return [*encoded, joined, encoded[0] + encoded[5]]


def of_kafka() -> Iterator[bytes]:
    """The small ones among the first batches of each log that a broker wrote."""
    roots = [GOLDEN / "clean", *([SHARED / "clean"] if SHARED.is_dir() else [])]
    for path in sorted(path for root in roots for path in root.glob("*/*.log")):
        data, at = path.read_bytes(), 0
        for _ in range(3):
            size = _size(data, at)
            if not size:
                break
            if size <= _MOST_SEED:
                yield data[at : at + size]
            at += size


def seeds() -> list[bytes]:
    """All of them; those of Kafka's once each."""
    return [*made(), *dict.fromkeys(of_kafka())]


# --- what is where --------------------------------------------------------------------------------


def _size(data: bytes, at: int) -> int:
    """Bytes of the batch at `at`; 0 where there is no whole one."""
    if len(data) - at < HEADER.size:
        return 0
    size = 12 + int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
    return size if HEADER.size <= size <= len(data) - at else 0


def starts(data: bytes) -> list[int]:
    """Where batches begin, as far as lengths tell; at least 0."""
    found, at = [0], 0
    while size := _size(data, at):
        at += size
        found.append(at)
    return found[:-1] or found


def with_crcs(data: bytes) -> bytes:
    """The same, each batch's CRC and magic as they should be: so that a change reaches what comes behind."""
    out = bytearray(data)
    for at in starts(data):
        size = _size(data, at)
        if size:
            out[at + 16] = 2
            out[at + 17 : at + 21] = struct.pack(">I", crc32c(bytes(out[at + 21 : at + size])))
    return bytes(out)


# --- changes ----------------------------------------------------------------------------------------


def field(rng: random.Random, data: bytes, _: bytes) -> bytes:
    at, size = rng.choice(list(FIELDS.values()))
    return overwrite(rng, data, rng.choice(starts(data)) + at, size)


def count_or_delta(rng: random.Random, data: bytes, _: bytes) -> bytes:
    """A little more or less than the truth."""
    at = rng.choice(starts(data)) + FIELDS[rng.choice(("count", "last offset delta", "length"))][0]
    told = int.from_bytes(data[at : at + 4], "big") + rng.choice((-2, -1, 1, 2, 100))
    return data[:at] + struct.pack(">I", told % (1 << 32)) + data[at + 4 :]


def codec(rng: random.Random, data: bytes, _: bytes) -> bytes:
    at = rng.choice(starts(data)) + 22
    changed = (data[at : at + 1] or b"\0")[0] & ~7 | rng.randrange(8)
    return data[:at] + bytes([changed]) + data[at + 1 :]


def recompressed(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """A batch of changed records, compressed as it should be: what decompresses must be looked at too."""
    kind, records = rng.randrange(5), encode_records(_PLAIN)
    for _ in range(rng.choice((0, 1, 2))):
        records = rng.choice(ANY)(rng, records, other)
    payload = compressed_bytes(kind, records)
    if rng.random() < 0.4:
        payload = rng.choice(ANY)(rng, payload, other)
    count = rng.choice((3, 3, 0, 1, 4, rng.choice(INTERESTING) & 0x7FFFFFFF))
    return encode_batch(replace(_PLAIN, attributes=kind), payload, count)


def payload(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """One batch's records change; its length field follows."""
    at = rng.choice(starts(data))
    size = _size(data, at)
    if not size:
        return data
    changed = rng.choice(ANY)(rng, data[at + HEADER.size : at + size], other)
    length = struct.pack(">i", HEADER.size - 12 + len(changed))
    head = data[at : at + 8] + length + data[at + 12 : at + HEADER.size]
    return data[:at] + head + changed + data[at + size :]


def together(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return other + data if rng.random() < 0.5 else data + other


MUTATORS: tuple[Mutator, ...] = (
    field, field, field, count_or_delta, codec, recompressed, recompressed, payload, payload, payload,
    together, *ANY,
)  # fmt: skip
