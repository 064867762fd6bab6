"""Makes messages of magic 0 and 1 as first inputs, and changes them with knowledge of their fields, also
within wrappers. Writes nothing.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import replace

import message_sets
from drawn_sets import EACH_KIND, KINDS, entry, some
from message_sets import GZIP, LZ4, NONE, SNAPPY, Entry, Malformed

from fuzz.mutate import ANY, Mutator, overwrite

FIELDS = ((0, 8), (8, 4), (12, 4), (16, 1), (17, 1), (18, 4), (18, 8), (22, 4), (26, 4))
"""(position, size) of offset, size, CRC, magic, attributes, key length or timestamp, lengths behind them."""


def seeds() -> list[bytes]:
    """Return logs of every kind, wrappers within wrappers among them."""
    whole = [drawn.data for drawn in KINDS.values()]
    nested = [_around(_around(message_sets.plain(magic, some(0, 3)), magic), magic) for magic in (0, 1)]
    mixed = entry(1, GZIP, some(0, 3)).data + entry(2, NONE, some(5, 3)).data + entry(0, LZ4, some(9, 3)).data
    gaps = [entry(1, codec, some(70, 4, gap=9)).data for codec in (NONE, GZIP, SNAPPY)]
    return [*whole, *nested, mixed, *gaps, EACH_KIND.data]


def _around(inner: bytes, magic: int) -> bytes:
    value = message_sets.compress(GZIP, inner, magic)
    return message_sets.encode(Entry(2, magic, GZIP, 5 if magic else -1, None, value))


# --- what is where -----------------------------------------------------------------------------


def _bounds(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each entry, as far as sizes tell."""
    at = 0
    while len(data) - at >= 26:
        end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
        if not at + 26 <= end <= len(data):
            return
        yield at, end
        at = end


def with_crcs(data: bytes) -> bytes:
    """Return the same with each message's CRC as it should be. Batches of magic 2 stay."""
    out = bytearray(data)
    for begin, end in _bounds(data):
        if out[begin + 16] != 2:
            out[begin + 16] &= 1
            out[begin + 12 : begin + 16] = zlib.crc32(bytes(out[begin + 16 : end])).to_bytes(4, "big")
    return bytes(out)


# --- changes -----------------------------------------------------------------------------------


def field(rng: random.Random, data: bytes, _: bytes) -> bytes:
    at, size = rng.choice(FIELDS)
    begin = rng.choice([0, *(begin for begin, _ in _bounds(data))])
    return overwrite(rng, data, begin + at, size)


def offset(rng: random.Random, data: bytes, _: bytes) -> bytes:
    """A little more or less than the truth."""
    begin = rng.choice([0, *(begin for begin, _ in _bounds(data))])
    told = int.from_bytes(data[begin : begin + 8], "big") + rng.choice((-9, -2, -1, 1, 2, 9, 1 << 31))
    return data[:begin] + (told % (1 << 64)).to_bytes(8, "big") + data[begin + 8 :]


def codec(rng: random.Random, data: bytes, _: bytes) -> bytes:
    begin = rng.choice([0, *(begin for begin, _ in _bounds(data))])
    changed = (data[begin + 17 : begin + 18] or b"\0")[0] & ~7 | rng.randrange(8)
    return data[: begin + 17] + bytes([changed]) + data[begin + 18 :]


def nested(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """The messages of a wrapper change; what is around them follows."""
    wrappers = [(begin, end, held) for begin, end in _bounds(data) if (held := _wrapper(data[begin:end]))]
    if not wrappers:
        return data
    begin, end, held = rng.choice(wrappers)
    inner = message_sets.decompress(held.codec, held.value or b"", held.magic)
    for _ in range(rng.choice((1, 1, 2))):
        inner = rng.choice((field, field, offset, codec, nested, *ANY))(rng, inner, other)
    inner = with_crcs(inner) if rng.random() < 0.8 else inner
    kind = rng.choice((held.codec, held.codec, GZIP, SNAPPY, LZ4))
    value = message_sets.compress(kind, inner, held.magic)
    changed = replace(held, attributes=held.attributes & ~7 | kind, value=value)
    return data[:begin] + message_sets.encode(changed) + data[end:]


def _wrapper(whole: bytes) -> Entry | None:
    """Return the wrapper that is here, and sound; None where there is none."""
    try:
        found = message_sets.parse(message_sets.split(whole))
        if found.codec and found.value is not None:
            message_sets.decompress(found.codec, found.value, found.magic)
            return found
    except Malformed:
        pass
    return None


def together(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """One behind the other, with offsets that rise."""
    bounds = list(_bounds(data))
    last = int.from_bytes(data[bounds[-1][0] : bounds[-1][0] + 8], "big") if bounds else 0
    out = bytearray(other)
    for begin, _ in _bounds(other):
        told = (int.from_bytes(out[begin : begin + 8], "big") + last + 1) % (1 << 64)
        out[begin : begin + 8] = told.to_bytes(8, "big")
    return data + bytes(out)


MUTATORS: tuple[Mutator, ...] = (
    field, field, offset, offset, codec, nested, nested, nested, nested, together, *ANY,
)  # fmt: skip
