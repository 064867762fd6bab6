"""The functions that generated codecs call: for unsigned varints, strings, byte strings and lengths of
arrays. A request has a dozen varints, and most of these have one byte (below ONE_BYTE). Varints of one byte
are read and written inline, without a call.

A function that reads takes a memoryview of bytes and a position, and returns a value and the position after
the value. If `compact`, a length is a varint, as in flexible versions. If `compact` is False, a length is an
int32 if `wide`, else an int16. If `nullable`, the value may be null. If the bytes end too early, the function
raises IndexError or struct.error; `codec.decode` raises InvalidRequestError in their place.
"""

from __future__ import annotations

import struct
from typing import Any, NoReturn

from segstore.errors import InvalidRequestError

CORRELATION_ID = slice(4, 8)
"""The position of the correlation id in requests, and in answers that begin with the size field."""
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
LONGEST_VARINT = 5
ONE_BYTE = 0x80
LONGEST_STRING = 0x7FFF
"""Largest number of bytes of a string. Compact lengths could be larger, but Kafka's MessageGenerator refuses
longer strings, too.
"""
MOST_ELEMENTS = 250_000
"""Largest number of elements of all arrays of one request together, nested arrays included. Ten bytes of a
request may become an object of 180 bytes, so this limits the objects to 45 MB.
"""


class Packed:
    """An encoded array of structures. In a body of the same version it may stand in place of the list of the
    structures.
    """

    __slots__ = ("_data", "_size", "_version")

    def __init__(self, size: int, version: int, data: bytes) -> None:
        self._size, self._version, self._data = size, version, data

    def __len__(self) -> int:
        return self._size

    def of(self, version: int) -> bytes:
        """Return the bytes of the elements. Raises ValueError if the elements are encoded in
        another version.
        """
        if version != self._version:
            raise ValueError(f"an array is encoded in version {self._version}")
        return self._data


def bad(message: str) -> NoReturn:
    raise InvalidRequestError(message)


def read_uvarint(data: memoryview, at: int) -> tuple[int, int]:
    value = data[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for n in range(1, LONGEST_VARINT):
        byte = data[at + n]
        value |= (byte & 0x7F) << 7 * n
        if byte < 0x80:
            return value, at + n + 1
    bad("a varint has more than 5 bytes")


def behind_tags(data: memoryview, at: int) -> int:
    """Return the position after the tagged fields of a header. The tagged fields begin at `at`, and are
    ignored.
    """
    if data[at] == 0:
        return at + 1
    number, at = read_uvarint(data, at)
    for _ in range(number):
        _, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        at += size
    return at


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _span(data: memoryview, at: int, compact: bool, wide: bool, nullable: bool) -> tuple[int, int]:
    """Return (length of a string or of bytes, position after the length). The length must not exceed the
    number of bytes that follow; a length of -1 stands for null.
    """
    if compact:
        length, at = read_uvarint(data, at)
        length -= 1
    elif wide:
        length, at = _INT32.unpack_from(data, at)[0], at + 4
    else:
        length, at = _INT16.unpack_from(data, at)[0], at + 2
    if length < 0 and not (length == -1 and nullable):
        bad(f"a length is {length}")
    if length > len(data) - at:
        bad(f"a length is {length}, and {len(data) - at} bytes are left")
    return length, at


def read_string(data: memoryview, at: int, compact: bool, nullable: bool) -> tuple[str | None, int]:
    if compact and 0 < (size := data[at]) < ONE_BYTE and size <= len(data) - at:
        return str(data[at + 1 : at + size], "utf-8"), at + size
    length, at = _span(data, at, compact, False, nullable)
    if length < 0:
        return None, at
    if length > LONGEST_STRING:
        bad(f"a string has {length:,} bytes; at most {LONGEST_STRING:,} are allowed")
    end = at + length
    return str(data[at:end], "utf-8"), end


def read_bytes(data: memoryview, at: int, compact: bool, nullable: bool) -> tuple[bytes | None, int]:
    length, at = _span(data, at, compact, True, nullable)
    if length < 0:
        return None, at
    return bytes(data[at : at + length]), at + length


def read_records(data: memoryview, at: int, compact: bool, nullable: bool) -> tuple[memoryview | None, int]:
    """Return (view of record batches in `data`, or None for null, position after the batches)."""
    length, at = _span(data, at, compact, True, nullable)
    if length < 0:
        return None, at
    return data[at : at + length], at + length


def read_count(data: memoryview, at: int, compact: bool, nullable: bool, left: list[int]) -> tuple[int, int]:
    """Return (length of an array, position after the length); a length of -1 stands for null. `left[0]` is
    the number of elements that the message may still have; the length is subtracted from `left[0]`.
    """
    if compact and 0 < (size := data[at]) < ONE_BYTE and size <= len(data) - at and size <= left[0]:
        left[0] -= size - 1
        return size - 1, at + 1
    count, at = _span(data, at, compact, True, nullable)
    left[0] -= max(count, 0)
    if left[0] < 0:
        bad(f"there are more than {MOST_ELEMENTS} elements in arrays")
    return count, at


def read_numbers(data: memoryview, at: int, count: int, code: str) -> tuple[list[Any], int]:
    form = f">{count}{code}"
    return list(struct.unpack_from(form, data, at)), at + struct.calcsize(form)


def write_length(out: bytearray, length: int, compact: bool, wide: bool) -> None:
    """Write a length; -1 stands for null."""
    if compact:
        out += uvarint(length + 1)
    else:
        out += _INT32.pack(length) if wide else _INT16.pack(length)


def write_string(out: bytearray, text: str | None, compact: bool) -> None:
    if text is None:
        write_length(out, -1, compact, False)
    else:
        data = text.encode()
        size = len(data)
        if size > LONGEST_STRING:
            raise ValueError(f"a string has {size:,} bytes; at most {LONGEST_STRING:,} are allowed")
        if compact and size + 1 < ONE_BYTE:
            out.append(size + 1)
        else:
            write_length(out, size, compact, False)
        out += data


def uuid(value: bytes) -> bytes:
    """Return `value`, which is a uuid. Raises ValueError unless it has 16 bytes: `struct.pack` would pad or
    cut another length.
    """
    if len(value) != 16:
        raise ValueError(f"a uuid has {len(value)} bytes instead of 16")
    return value


def write_bytes(out: bytearray, data: Any, compact: bool) -> None:
    write_length(out, -1 if data is None else len(data), compact, True)
    if data is not None:
        out += data
