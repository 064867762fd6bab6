"""The five codecs of Kafka's record batches, which use cramjam and zlib; nothing is on disk.

The functions have no state, release the GIL while they work, and are safe from any thread.

The output has the framing of Kafka's own streams (org.apache.kafka.common.compress): standard gzip and zstd,
snappy in snappy-java's framing of 32 KiB blocks, lz4 as a frame of independent 64 KiB blocks without
checksums. Raw snappy and every valid lz4 frame can be read too.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import cramjam

from segstore.arrays import np
from segstore.records.header import CODECS

Buffer = bytes | bytearray | memoryview

MAX_PLAIN = 1 << 28
"""Largest decompressed size of one batch's records. Writers never exceed this limit, and readers refuse
larger batches.
"""

XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = XERIAL + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024
_LZ4_MAGIC = 0x184D2204
# The three bytes after the magic number: the flags (version 1, independent blocks, no checksums, no content
# size), the block size of 64 KiB, and the second byte of the xxHash32 of flags and block size.
_LZ4_HEADER = struct.pack("<IBBB", _LZ4_MAGIC, 0x60, 0x40, 0x82)
_LZ4_BLOCK = 64 * 1024
_LZ4_STORED = 1 << 31
_LZ4_FAST_LEVEL = 9

# The largest number of decompressed bytes that one compressed byte may stand for, by codec; zstd's run-length
# blocks have no useful bound.
_MAX_RATIO = (1, 1040, 64, 256, 1 << 20)
_GUESS_RATIO = (1, 10, 5, 5, 10)


class DecompressError(Exception):
    """The bytes are not a whole and valid frame of the codec, or have more decompressed bytes than
    allowed.
    """


def compress(codec: int, data: Buffer, level: int | None = None) -> Buffer:
    """Return `data` compressed, in Kafka's framing of `codec` (an index in CODECS).

    `level` is Kafka's `compression.<codec>.level`; None stands for the codec's default (for lz4 the fast
    compressor, as in Kafka's Lz4BlockOutputStream).
    """
    return _COMPRESS[codec](memoryview(data), level)


def decompress(codec: int, data: Buffer, limit: int = MAX_PLAIN) -> Buffer:
    """Return the decompressed bytes of a whole frame. Raises DecompressError if the frame is damaged, or has
    more than `limit` decompressed bytes.
    """
    out = np.empty(guess(codec, data, limit), np.uint8)
    while True:
        n = decompress_into(codec, data, out.data, limit)
        if n >= 0:
            return out[:n].data
        out = np.empty(min(bound(codec, len(data), limit), 4 * len(out) + 64), np.uint8)


def decompress_into(codec: int, data: Buffer, out: Buffer, limit: int = MAX_PLAIN) -> int:
    """Decompress into `out`; return the number of bytes written, or -1 if a larger `out` may help.

    Raises DecompressError if a larger `out` can't help, because it already has `limit` bytes, or as many as
    the frame could need.
    """
    most = bound(codec, len(data), limit)
    view = memoryview(out)[:most]
    try:
        return _DECOMPRESS[codec](memoryview(data), view)
    except (cramjam.DecompressionError, DecompressError, ValueError, struct.error) as e:
        if len(view) < most:
            return -1
        name = CODECS[codec]
        raise DecompressError(f"{name}: {e}, or more than the {most:,} bytes allowed") from e


def lz4_of_magic_0(data: Buffer) -> Buffer:
    """Return the lz4 frame of a message of magic 0, with a corrected header checksum.

    Kafka's old writers included the frame's magic number in the checksum; Kafka's readers accept any checksum
    in these messages (KafkaLZ4BlockInputStream).
    """
    if len(data) < 5:
        return data
    # `end` is the position of the checksum: after the flags, the block size, and the content's size, which
    # may be missing.
    end = 6 + 8 * (data[4] >> 3 & 1)
    mended = bytearray(data)
    mended[end : end + 1] = bytes([_xxhash32(data[4:end]) >> 8 & 0xFF]) if len(data) > end else b""
    return mended


def _xxhash32(data: Buffer) -> int:
    """Return the xxHash32, with seed 0, of fewer than 16 bytes."""
    most, h = 0xFFFFFFFF, 0x165667B1 + len(data)
    words = len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:words]):
        h = h + word * 0xC2B2AE3D & most
        h = (h << 17 | h >> 15) * 0x27D4EB2F & most
    for byte in data[words:]:
        h = h + byte * 0x165667B1 & most
        h = (h << 11 | h >> 21) * 0x9E3779B1 & most
    h = (h ^ h >> 15) * 0x85EBCA77 & most
    h = (h ^ h >> 13) * 0xC2B2AE3D & most
    return h ^ h >> 16


def bound(codec: int, size: int, limit: int = MAX_PLAIN) -> int:
    """Return an upper bound, at most `limit`, of the decompressed size of `size` compressed bytes."""
    return min(limit, _MAX_RATIO[codec] * size + 64)


def guess(codec: int, data: Buffer, limit: int = MAX_PLAIN) -> int:
    """Return a number of bytes that is probably enough for the decompressed `data`, never more than `bound`
    returns.
    """
    size = len(data)
    if codec == 0:
        likely = size
    elif codec == 1 and size >= 18:
        likely = int.from_bytes(data[-4:], "little")
    elif codec == 2 and bytes(data[:8]) != XERIAL:
        likely = _raw_snappy_size(memoryview(data))
    else:
        likely = max(_GUESS_RATIO[codec] * size, 4096)
    return min(likely, bound(codec, size, limit))


def _plain(data: memoryview, level: int | None) -> Buffer:
    return data


def _gzip(data: memoryview, level: int | None) -> Buffer:
    z = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
    return z.compress(data) + z.flush()


def _snappy(data: memoryview, level: int | None) -> Buffer:
    parts: list[Any] = [_XERIAL_HEADER]
    for at in range(0, len(data), _XERIAL_BLOCK):
        block = cramjam.snappy.compress_raw(data[at : at + _XERIAL_BLOCK])
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _lz4(data: memoryview, level: int | None) -> Buffer:
    fast = level is None or level == _LZ4_FAST_LEVEL
    parts: list[Any] = [_LZ4_HEADER]
    for at in range(0, len(data), _LZ4_BLOCK):
        plain = data[at : at + _LZ4_BLOCK]
        block = cramjam.lz4.compress_block(plain, store_size=False) if fast else _lz4_high(plain, level)
        if len(block) < len(plain):
            parts += (len(block).to_bytes(4, "little"), block)
        else:
            parts += ((len(plain) | _LZ4_STORED).to_bytes(4, "little"), plain)
    parts.append(b"\0\0\0\0")
    return b"".join(parts)


def _lz4_high(plain: memoryview, level: int | None) -> memoryview:
    # If a level is given, cramjam makes only whole frames, with linked blocks. Kafka refuses linked blocks.
    # So each block is compressed as a frame of its own, and then taken out of that frame.
    frame = memoryview(cramjam.lz4.compress(plain, level=level))
    at = 7 + 8 * (frame[4] >> 3 & 1)
    size = int.from_bytes(frame[at : at + 4], "little")
    block_end = at + 4 + (size & ~_LZ4_STORED)
    end = block_end + 4 * (frame[4] >> 4 & 1)  # the checksum of the block, if there is one, is skipped
    if size & _LZ4_STORED:
        return plain
    if int.from_bytes(frame[end : end + 4], "little"):
        # This frame has several blocks of 8 KiB, which depend on each other: cramjam before 2.12 made it.
        return memoryview(cramjam.lz4.compress_block(plain, store_size=False))
    return frame[at + 4 : block_end]


def _zstd(data: memoryview, level: int | None) -> Buffer:
    return memoryview(cramjam.zstd.compress(data, level=3 if level is None else level))


def _plain_into(data: memoryview, out: memoryview) -> int:
    out[: len(data)] = data
    return len(data)


def _gzip_into(data: memoryview, out: memoryview) -> int:
    return int(cramjam.gzip.decompress_into(data, out))


def _snappy_into(data: memoryview, out: memoryview) -> int:
    if data[:8] != XERIAL:
        return _raw_snappy_into(data, out)
    at, done = len(_XERIAL_HEADER), 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        at += 4
        if size > len(data) - at:
            raise DecompressError(f"a block of {size} bytes, of which {len(data) - at} are there")
        done += _raw_snappy_into(data[at : at + size], out[done:])
        at += size
    return done


def _raw_snappy_into(data: memoryview, out: memoryview) -> int:
    if _raw_snappy_size(data) > len(out):
        raise DecompressError("the output is too small")
    return int(cramjam.snappy.decompress_raw_into(data, out))


def _raw_snappy_size(data: memoryview) -> int:
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size
        shift += 7
    raise DecompressError("snappy: no length at its front")


def _lz4_into(data: memoryview, out: memoryview) -> int:
    return int(cramjam.lz4.decompress_into(data, out))


def _zstd_into(data: memoryview, out: memoryview) -> int:
    return int(cramjam.zstd.decompress_into(data, out))


_COMPRESS: tuple[Callable[[memoryview, int | None], Buffer], ...] = (_plain, _gzip, _snappy, _lz4, _zstd)
_DECOMPRESS: tuple[Callable[[memoryview, memoryview], int], ...] = (
    _plain_into, _gzip_into, _snappy_into, _lz4_into, _zstd_into,
)  # fmt: skip
