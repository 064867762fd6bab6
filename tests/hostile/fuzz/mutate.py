"""Changes bytes at random, and with knowledge of what they are. All functions are deterministic, given the
generator.
"""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Sequence

Mutator = Callable[[random.Random, bytes, bytes], bytes]
"""From a generator, an input and another one to splice with: another input."""

INTERESTING = sorted(
    {
        sign * (1 << bits) + off
        for bits in (0, 7, 8, 15, 16, 24, 31, 32, 62, 63)
        for sign in (1, -1)
        for off in (-1, 0, 1)
    }
)
MOST_BYTES = 1 << 16
"""Of an input: what is longer is cut."""


def overwrite(rng: random.Random, data: bytes, at: int, size: int, big: bool = True) -> bytes:
    """An interesting integer of `size` bytes in place of those at `at`."""
    number = rng.choice(INTERESTING) & ((1 << 8 * size) - 1)
    return data[:at] + number.to_bytes(size, "big" if big else "little") + data[at + size :]


def flip(rng: random.Random, data: bytes, _: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def integer(rng: random.Random, data: bytes, _: bytes) -> bytes:
    size = rng.choice((1, 2, 4, 8))
    return overwrite(rng, data, rng.randrange(len(data) + 1), size, rng.random() < 0.7)


def cut(rng: random.Random, data: bytes, _: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] if rng.random() < 0.5 else data[at:]


def remove(rng: random.Random, data: bytes, _: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.choice((1, 2, 4, 8, rng.randrange(1, 200))) :]


def repeat(rng: random.Random, data: bytes, _: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    part = data[at : at + rng.choice((1, 4, 8, 12, 61, 200))]
    return data[:at] + part * rng.choice((2, 3, 20)) + data[at + len(part) :]


def insert(rng: random.Random, data: bytes, _: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.choice((1, 4, 16, 100))) + data[at:]


def blank(rng: random.Random, data: bytes, _: bytes) -> bytes:
    at, fill = rng.randrange(len(data) + 1), rng.choice((b"\0", b"\xff"))
    size = min(rng.choice((1, 4, 8, 64, 4096)), len(data) - at)
    return data[:at] + fill * size + data[at + size :]


def varint(rng: random.Random, data: bytes, _: bytes) -> bytes:
    """One that is as long as can be, longer, or never ends."""
    at, size = rng.randrange(len(data) + 1), rng.choice((4, 5, 9, 10, 11))
    return data[:at] + b"\xff" * size + rng.choice((b"\x0f", b"\x7f", b"\x01", b"")) + data[at + size + 1 :]


def splice(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def random_bytes(rng: random.Random, data: bytes, _: bytes) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 8, 61, 62, 100, 1000)))


ANY: tuple[Mutator, ...] = (flip, integer, cut, remove, repeat, insert, blank, varint, splice, random_bytes)


# --- text -----------------------------------------------------------------------------------------

_ODD = [
    *(str(n).encode() for n in INTERESTING),
    *(b"0x10", b"1e400", b"-0", b"+1", b"1_0", b"\xd9\xa1", b"NaN", b"Infinity", b"9" * 400, b"9" * 5000),
    *(b"null", b"true", b'""', b'"\\ud800"', b"[]", b"{}", b"[" * 5000, b'{"a":' * 3000, b"\xef\xbb\xbf"),
    *(
        b"\xff\xfe",
        b"\0",
        b"\r",
        b"\x85",
        b"\x0b",
        b"../..",
        b"/",
        b"." * 300,
        b"a" * 250,
        b"\xf0\x9f\x92\xa9",
    ),
]
_WORD = re.compile(rb'-?[0-9]+|"[^"]*"|[A-Za-z_.]+|[\[\]{},:\n ]')


def word(rng: random.Random, data: bytes, _: bytes) -> bytes:
    """A number, string or mark gives way to another."""
    places = list(_WORD.finditer(data))
    if not places:
        return rng.choice(_ODD)
    place = rng.choice(places)
    new = rng.choice(_ODD) if rng.random() < 0.7 else rng.choice(places)[0]
    if place[0].startswith(b'"') and not new.startswith(b'"') and rng.random() < 0.5:
        new = b'"' + new + b'"'
    return data[: place.start()] + new + data[place.end() :]


def lines(rng: random.Random, data: bytes, _: bytes) -> bytes:
    """A line goes, comes twice, or comes elsewhere."""
    held = data.splitlines(keepends=True) or [b"\n"]
    line = held.pop(rng.randrange(len(held)))
    for _ in range(rng.randrange(3)):
        held.insert(rng.randrange(len(held) + 1), line)
    return b"".join(held)


TEXT: tuple[Mutator, ...] = (word, word, word, word, lines, flip, cut, remove, repeat, insert, splice)


def at_fields(places: Sequence[tuple[int, int]]) -> Mutator:
    """Interesting integers at these (position, size) of a fixed form."""

    def change(rng: random.Random, data: bytes, _: bytes) -> bytes:
        return overwrite(rng, data, *rng.choice(places))

    return change


def entries(form: str, head: int = 0) -> Mutator:
    """Interesting integers in the fields of fixed-size entries (`struct` form) behind `head` bytes."""
    sizes = [struct.calcsize(">" + code) for code in form]

    def change(rng: random.Random, data: bytes, _: bytes) -> bytes:
        count = max((len(data) - head) // sum(sizes), 1)
        field = rng.randrange(len(sizes))
        at = head + rng.randrange(count) * sum(sizes) + sum(sizes[:field])
        return overwrite(rng, data, at, sizes[field])

    return change
