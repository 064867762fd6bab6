"""Kafka's primitive types as bytes: integers, strings, byte strings, arrays, tagged fields. Tests write by
hand here what generated codecs of the package write and read.

Integers are big-endian; a length of -1 stands for null. "Compact" forms are those of flexible versions: the
length is an unsigned varint of length + 1, and 0 stands for null (KIP-482).
Threads: a `Reader` belongs to one thread; the functions have no state.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


def int8(value: int) -> bytes:
    return struct.pack(">b", value)


def int16(value: int) -> bytes:
    return struct.pack(">h", value)


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


def int64(value: int) -> bytes:
    return struct.pack(">q", value)


def varint(value: int) -> bytes:
    """Encode an unsigned varint."""
    data = b""
    while value > 0x7F:
        data, value = data + bytes([value & 0x7F | 0x80]), value >> 7
    return data + bytes([value])


def tags(fields: Mapping[int, bytes]) -> bytes:
    """Encode the tagged fields that end a flexible structure; the tags must be in rising order."""
    parts = [varint(tag) + varint(len(data)) + data for tag, data in fields.items()]
    return varint(len(parts)) + b"".join(parts)


def string(text: str | None, compact: bool = False) -> bytes:
    if text is None:
        return varint(0) if compact else b"\xff\xff"
    data = text.encode()
    return (varint(len(data) + 1) if compact else int16(len(data))) + data


def byte_string(data: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if data is None else int32(len(data)) + data


def array(parts: Iterable[bytes] | None, compact: bool = False) -> bytes:
    """Encode an array of elements that are encoded already."""
    if parts is None:
        return varint(0) if compact else int32(-1)
    held = list(parts)
    return (varint(len(held) + 1) if compact else int32(len(held))) + b"".join(held)


class Reader:
    """Reads one field after the other from `data`. Each method raises ValueError where the data ends too
    early.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        """Return the number of bytes that were not read yet."""
        return len(self._data) - self._at

    def _take(self, count: int) -> bytes:
        begin, end = self._at, self._at + count
        if count < 0 or end > len(self._data):
            raise ValueError(f"{count} bytes are expected at {begin}, {self.left} are left")
        self._at = end
        return self._data[begin:end]

    def int8(self) -> int:
        return int.from_bytes(self._take(1), "big", signed=True)

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self._take(8), "big", signed=True)

    def varint(self) -> int:
        """Read an unsigned varint of at most 32 bits."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError(f"a varint at {self._at} does not end")

    def uuid(self) -> bytes:
        return self._take(16)

    def nullable_string(self, compact: bool = False) -> str | None:
        length = self.varint() - 1 if compact else self.int16()
        return None if length < 0 else self._take(length).decode()

    def string(self, compact: bool = False) -> str:
        text = self.nullable_string(compact)
        if text is None:
            raise ValueError(f"a string at {self._at} is null")
        return text

    def nullable_bytes(self, compact: bool = False) -> bytes | None:
        length = self.varint() - 1 if compact else self.int32()
        return None if length < 0 else self._take(length)

    def array(self, read: Callable[[], T], compact: bool = False) -> list[T]:
        count = self.varint() - 1 if compact else self.int32()
        if count > self.left:
            raise ValueError(f"{count} elements are expected at {self._at}, {self.left} bytes are left")
        return [read() for _ in range(count)]

    def tags(self) -> dict[int, bytes]:
        """Read the tagged fields that end a flexible structure."""
        return {self.varint(): self._take(self.varint()) for _ in range(self.varint())}
