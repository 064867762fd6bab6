"""Draws bodies of Kafka's messages: every field that a version has, with values at the ends of its range,
null and empty ones, strings of several alphabets.
"""

from __future__ import annotations

import random
from typing import Any

from segstore.protocol.codec import encode, structs
from segstore.protocol.definitions import Field, messages

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
CODES = (-1, 0, 3, 42, 110)  # judges refuse unknown codes, and times before 1970
TEXTS = ("", "a", "topic-0", "Größe", "日志", "🦀 𝄞", "x" * 200)
CASES = [
    (name, version)
    for name, definition in sorted(messages().items())
    if definition.kind != "header"
    for version in range(definition.valid.low, definition.valid.high + 1)
]
"""Each message with each of its versions."""


def drawn(name: str, version: int, rng: random.Random, lengths: tuple[int, int] = (0, 3)) -> Any:
    """Return a body; `lengths` bounds those of its arrays, which are null only where they may be empty.
    Fields that the version lacks have their defaults."""
    return _struct(name, name, version, rng, lengths)


def _struct(message: str, name: str, version: int, rng: random.Random, lengths: tuple[int, int]) -> Any:
    body = structs(message)
    fields = messages()[message].structs[name]
    values = {f.name: _value(message, f, version, rng, lengths) for f in fields if version in f.versions}
    return getattr(body, name, body)(**values)


def _value(message: str, field: Field, version: int, rng: random.Random, lengths: tuple[int, int]) -> Any:
    if version in field.nullable and rng.random() < 0.2 and not (field.is_array and lengths[0]):
        return None
    if field.is_array:
        return [_one(message, field, version, rng, lengths) for _ in range(rng.randint(*lengths))]
    return _one(message, field, version, rng, lengths)


def _one(message: str, field: Field, version: int, rng: random.Random, lengths: tuple[int, int]) -> Any:
    if field.is_struct:
        return _struct(message, field.kind, version, rng, lengths)
    if field.name.endswith("error_code"):
        return rng.choice(CODES)
    if field.name.endswith(("_ms", "timestamp")):
        return rng.choice((0, 1, 1 << 30))
    return _scalar(field.kind, rng)


def _scalar(kind: str, rng: random.Random) -> Any:
    if kind in BITS:
        most = 1 << (BITS[kind] - 1)
        return rng.choice((-most, -1, 0, 1, most - 1, rng.randrange(-most, most)))
    if kind in ("uint16", "uint32"):
        return rng.choice((0, 1, (1 << int(kind[4:])) - 1))
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.choice((0.0, -1.5, 1e300, rng.random()))
    if kind == "string":
        return rng.choice(TEXTS)
    return rng.randbytes(16 if kind == "uuid" else rng.choice((0, 1, 63, 127, 128, 300)))


def encoded(body: Any, version: int) -> bytes:
    """Return a body's bytes."""
    out = bytearray()
    encode(body, version, out)
    return bytes(out)
