"""Codecs that store: frames which every reader of the codec takes, and whose bytes no library decides.

The frames that gzip, snappy, lz4 and zstd make of the same records differ between versions of the libraries,
and so do the sizes of batches, the places of rolls, and the entries of indexes. Logs that are compared with
hashes of another machine are written with these codecs.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from segstore.records import codecs


def gzip(data: memoryview, level: int | None) -> bytes:
    """A member of stored blocks (RFC 1951, 3.2.4), without time and system."""
    out = bytearray(b"\x1f\x8b\x08\0\0\0\0\0\0\xff")
    pieces = _pieces(data, 0xFFFF)
    for number, piece in enumerate(pieces, 1):
        out += struct.pack("<BHH", number == len(pieces), len(piece), len(piece) ^ 0xFFFF) + piece
    return bytes(out + struct.pack("<II", zlib.crc32(data), len(data)))


def snappy(data: memoryview, level: int | None) -> bytes:
    """snappy-java's blocks, each one literal."""
    out = bytearray(codecs.XERIAL + struct.pack(">ii", 1, 1))
    for piece in _pieces(data, 32 * 1024):
        block = _varint(len(piece))
        if len(piece) > 4:
            block += b"\xf4" + struct.pack("<H", len(piece) - 1) + piece
        elif piece:  # cramjam wants four bytes behind a tag that a length follows
            block += bytes([len(piece) - 1 << 2]) + piece
        out += struct.pack(">i", len(block)) + block
    return bytes(out)


def lz4(data: memoryview, level: int | None) -> bytes:
    """A frame of independent, uncompressed blocks."""
    out = bytearray(struct.pack("<IBBB", 0x184D2204, 0x60, 0x40, 0x82))
    for piece in _pieces(data, 64 * 1024):
        out += struct.pack("<I", len(piece) | 1 << 31) + piece
    return bytes(out + bytes(4))


def zstd(data: memoryview, level: int | None) -> bytes:
    """A frame of one segment (RFC 8878), with its size, of raw blocks."""
    out = bytearray(struct.pack("<IBI", 0xFD2FB528, 0xA0, len(data)))
    pieces = _pieces(data, 128 * 1024)
    for number, piece in enumerate(pieces, 1):
        out += ((number == len(pieces)) | len(piece) << 3).to_bytes(3, "little") + piece
    return bytes(out)


def _pieces(data: memoryview, size: int) -> list[bytes]:
    return [bytes(data[at : at + size]) for at in range(0, len(data), size)] or [b""]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


@contextmanager
def storing() -> Iterator[None]:
    """Let everything that is compressed within be written by these codecs."""
    plain, *_ = codecs._COMPRESS
    with mock.patch.object(codecs, "_COMPRESS", (plain, gzip, snappy, lz4, zstd)):
        yield
