"""Reads and writes Confluent's prefix of values: a byte 0, and the schema's id in a registry as int32. In
Protobuf the path of the message's type within its file follows. Nothing is on disk. Functions without state:
safe from any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from segstore.integers import INT32_MAX

SIZE = 5
"""The size, in bytes, of the byte 0 and the id together."""


def schema_id(value: bytes) -> int | None:
    """Return the id in a value's prefix; None if the value has no prefix. Ids are above 0."""
    if len(value) < SIZE or value[0]:
        return None
    number = int.from_bytes(value[1:SIZE], "big")
    return number if 0 < number <= INT32_MAX else None


def prefix(number: int) -> bytes:
    """Return the prefix of values whose schema has the id `number`."""
    return b"\0" + number.to_bytes(4, "big")


def message_at(value: bytes) -> int:
    """Return the position at which the Protobuf message in `value` begins, after the prefix and the path.
    Raises ValueError if the path is invalid.
    """
    count, at = _zigzag(value, SIZE)
    if count < 0:
        raise ValueError(f"Confluent's prefix has {count} message indexes")
    for _ in range(count):
        _, at = _zigzag(value, at)
    return at


def path_bytes(path: Sequence[int]) -> bytes:
    """Encode the path of a message type. The path of the first type in a file is encoded as one byte 0."""
    if list(path) == [0]:
        return b"\0"
    return bytes(each for number in (len(path), *path) for each in _varint(number << 1))


def _varint(number: int) -> Iterator[int]:
    while number > 127:
        yield number & 127 | 128
        number >>= 7
    yield number


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    for i in range(at, min(at + 5, len(value))):
        number |= (value[i] & 127) << shift
        shift += 7
        if value[i] < 128:
            return number >> 1 ^ -(number & 1), i + 1
    raise ValueError("the message indexes of Confluent's prefix have no end")
