"""The oracle of old bytes: a slow codec of message sets of magic 0 and 1, plain and nested.

It is written from Kafka's LegacyRecord, AbstractLegacyRecordBatch and KafkaLZ4BlockOutputStream, and imports
nothing of segstore, so that it can't share a mistake with it. All functions are pure.

An entry is offset int64, size int32, and the message: CRC-32 uint32 of all that follows it, magic int8,
attributes int8 (bits 0-2 codec, bit 3 append time), timestamp int64 (magic 1 only), key and value, each with
its length as int32 (-1: null). A message with a codec is a wrapper: its value is a compressed message set.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import cramjam

NONE, GZIP, SNAPPY, LZ4 = range(4)
CODECS = ("none", "gzip", "snappy", "lz4")
CODEC_BITS, APPEND_TIME = 0x07, 0x08
NO_TIMESTAMP = -1
HEAD = struct.Struct(">qiIbb")
CRC_FROM = 16
MOST_OFFSET = (1 << 63) - 1
"""No entry has it: the offset behind the last one is an int64, too."""
KEY_AT = (18, 26)
LEAST = (14, 22)
"""The fewest bytes behind the size field, by magic: of a message without key and value."""


Decompress = Callable[[int, bytes, int], bytes]
"""Of codec, bytes and magic; raises Malformed."""


class Malformed(Exception):
    """The bytes are no sound message set."""


class Message(NamedTuple):
    """A record as a consumer gets it: `timestamp` in ms, -1 without one."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    append_time: bool = False


@dataclass(frozen=True)
class Entry:
    """What lies in a log: a plain message or a wrapper, whose value is a compressed message set."""

    offset: int
    magic: int
    attributes: int = 0
    timestamp: int = NO_TIMESTAMP
    key: bytes | None = None
    value: bytes | None = None
    crc: int | None = None
    """The CRC that is written, where it is not to be the right one."""

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_BITS


# --- writing -----------------------------------------------------------------------------------


def encode(entry: Entry) -> bytes:
    """Return the bytes of an entry."""
    stamp = struct.pack(">q", entry.timestamp) if entry.magic else b""
    body = struct.pack(">bb", entry.magic, entry.attributes) + stamp + _bytes(entry.key) + _bytes(entry.value)
    crc = zlib.crc32(body) if entry.crc is None else entry.crc
    return struct.pack(">qiI", entry.offset, 4 + len(body), crc) + body


def _bytes(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def plain(magic: int, messages: Sequence[Message]) -> bytes:
    """Return messages that are not compressed, one entry each."""
    return b"".join(encode(_entry(magic, m, m.offset)) for m in messages)


def _entry(magic: int, m: Message, offset: int) -> Entry:
    attributes = APPEND_TIME if magic and m.append_time else 0
    return Entry(offset, magic, attributes, m.timestamp if magic else NO_TIMESTAMP, m.key, m.value)


def wrap(magic: int, codec: int, messages: Sequence[Message], *, absolute: bool = False) -> bytes:
    """Return one wrapper around messages as Kafka's MemoryRecordsBuilder writes it: in magic 1 the inner
    offsets count from the first message, unless they are to be `absolute`, and the wrapper has the largest
    timestamp. Messages of append time have the wrapper's time, whatever is written inside.
    """
    first = 0 if magic == 0 or absolute else messages[0].offset
    inner = b"".join(encode(replace(_entry(magic, m, m.offset - first), attributes=0)) for m in messages)
    appended = magic == 1 and messages[0].append_time
    stamp = max(m.timestamp for m in messages) if magic else NO_TIMESTAMP
    attributes = codec | (APPEND_TIME if appended else 0)
    value = compress(codec, inner, magic)
    return encode(Entry(messages[-1].offset, magic, attributes, stamp, None, value))


# --- reading -----------------------------------------------------------------------------------


def entries(data: bytes) -> Iterator[tuple[int, Entry]]:
    """Yield position and entry of each message or wrapper, without looking into wrappers. Raises Malformed,
    also where the last one is cut off.
    """
    at, previous = 0, -1
    while at < len(data):
        whole = split(data, at, previous)
        entry = parse(whole)
        yield at, entry
        previous, at = entry.offset, at + len(whole)


def split(data: bytes, at: int = 0, previous: int = -1) -> bytes:
    """Return the bytes of the entry at `at`, by its size, and with its CRC checked. Raises Malformed, also
    where the key does not fit: that tells a message from other bytes before a CRC does.
    """
    if len(data) - at < HEAD.size:
        raise Malformed("the header is cut")
    offset, size, crc, magic, _ = HEAD.unpack_from(data, at)
    if magic not in (0, 1):
        raise Malformed(f"magic {magic}")
    if size < LEAST[magic] or size > len(data) - at - 12:
        raise Malformed(f"{size} bytes of {len(data) - at - 12}")
    if not previous < offset < MOST_OFFSET:
        raise Malformed(f"offset {offset} after {previous}")
    whole = data[at : at + 12 + size]
    (key,) = struct.unpack_from(">i", whole, KEY_AT[magic])
    if not -1 <= key <= size - LEAST[magic]:
        raise Malformed(f"a key of {key} bytes")
    if zlib.crc32(whole[CRC_FROM:]) != crc:
        raise Malformed("the CRC does not hold")
    return whole


def parse(whole: bytes) -> Entry:
    """Return what an entry says that `split` gave. Raises Malformed where its lengths don't fill it."""
    offset, _, _, magic, attributes = HEAD.unpack_from(whole)
    stamp, behind = NO_TIMESTAMP, HEAD.size
    if magic:
        (stamp,) = struct.unpack_from(">q", whole, behind)
        behind += 8
    key, behind = _bytes_at(whole, behind)
    value, behind = _bytes_at(whole, behind)
    if behind != len(whole):
        raise Malformed(f"{len(whole) - behind} bytes behind the value")
    return Entry(offset, magic, attributes, stamp, key, value)


def _bytes_at(data: bytes, at: int) -> tuple[bytes | None, int]:
    if len(data) - at < 4:
        raise Malformed("a length is cut")
    (size,) = struct.unpack_from(">i", data, at)
    at += 4
    if size < -1 or size > len(data) - at:
        raise Malformed(f"a length of {size}, {len(data) - at} bytes are left")
    return (None, at) if size < 0 else (data[at : at + size], at + size)


def messages(data: bytes) -> list[Message]:
    """Return all messages, those within wrappers too, with absolute offsets. Raises Malformed."""
    found: list[Message] = []
    for _, entry in entries(data):
        found += said(entry, found[-1].offset if found else -1)
    return found


def said(entry: Entry, previous: int = -1, plain: Decompress | None = None) -> list[Message]:
    """Return the messages of an entry behind offset `previous`. Raises Malformed."""
    found = unwrap(entry, plain or decompress) if entry.codec else [_message(entry)]
    offsets = [previous, *(message.offset for message in found)]
    if any(a >= b for a, b in pairwise(offsets)):
        raise Malformed(f"offsets don't rise: {offsets}")
    return found


def _message(entry: Entry) -> Message:
    appended = entry.magic == 1 and bool(entry.attributes & APPEND_TIME)
    return Message(entry.offset, entry.timestamp, entry.key, entry.value, appended)


def unwrap(wrapper: Entry, plain: Decompress) -> list[Message]:
    """Return the messages of a wrapper (Kafka: AbstractLegacyRecordBatch.DeepRecordsIterator)."""
    if wrapper.value is None:
        raise Malformed("a wrapper without a value")
    inner = _inner(plain(wrapper.codec, wrapper.value, wrapper.magic))
    if not inner:
        raise Malformed("a wrapper without messages")
    if any(entry.codec for entry in inner):
        raise Malformed("an inner message is compressed")
    if any(entry.magic != wrapper.magic for entry in inner):
        raise Malformed("an inner message has another magic")
    base = _base(wrapper, inner[-1].offset)
    found = [_message(replace(entry, offset=base + entry.offset)) for entry in inner]
    if wrapper.magic and wrapper.attributes & APPEND_TIME:
        return [m._replace(timestamp=wrapper.timestamp, append_time=True) for m in found]
    return [m._replace(append_time=False) for m in found]


def _inner(data: bytes) -> list[Entry]:
    """Return the entries of a wrapper; what is left behind the last whole one is no error (Kafka:
    DataLogInputStream).
    """
    found, at = [], 0
    while len(data) - at >= 12:
        (size,) = struct.unpack_from(">i", data, at + 8)
        if size < LEAST[0]:
            raise Malformed(f"a size of {size}")
        if size > len(data) - at - 12:
            break
        found.append(parse(split(data, at)))
        at += 12 + size
    return found


def _base(wrapper: Entry, last: int) -> int:
    """Return the offset of an inner message that says 0. In a log the wrapper has the last message's offset;
    a producer may send it with 0, which the broker mends.
    """
    if wrapper.offset < last:
        raise Malformed(f"the wrapper's offset {wrapper.offset} is below the last inner one, {last}")
    return 0 if wrapper.magic == 0 else wrapper.offset - last


# --- codecs ------------------------------------------------------------------------------------

XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
SNAPPY_BLOCK, LZ4_BLOCK = 32 << 10, 64 << 10
LZ4_MAGIC = struct.pack("<I", 0x184D2204)
LZ4_FLAGS = b"\x60\x40"
"""Version 1, independent blocks, no checksums, no content size; blocks of 64 KiB."""
STORED = 1 << 31
MASK = (1 << 32) - 1
PRIME = (0, 2654435761, 2246822519, 3266489917, 668265263, 374761393)


def compress(codec: int, data: bytes, magic: int = 1) -> bytes:
    """Return `data` as Kafka's streams write it. In magic 0 the checksum of an lz4 frame's header is Kafka's
    old, wrong one.
    """
    if codec == GZIP:
        squeezer = zlib.compressobj(wbits=31)
        return squeezer.compress(data) + squeezer.flush()
    if codec == SNAPPY:
        return XERIAL + b"".join(_framed(data, SNAPPY_BLOCK))
    if codec == LZ4:
        return lz4_header(magic) + b"".join(_lz4_blocks(data)) + bytes(4)
    raise ValueError(f"codec {codec}")


def _framed(data: bytes, block: int) -> Iterator[bytes]:
    for at in range(0, len(data), block):
        part = bytes(cramjam.snappy.compress_raw(data[at : at + block]))
        yield struct.pack(">i", len(part)) + part


def _lz4_blocks(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), LZ4_BLOCK):
        piece = data[at : at + LZ4_BLOCK]
        part = bytes(cramjam.lz4.compress_block(piece, store_size=False))
        yield (
            struct.pack("<I", len(part)) + part
            if len(part) < len(piece)
            else (struct.pack("<I", len(piece) | STORED) + piece)
        )


def lz4_header(magic: int) -> bytes:
    """Return a frame's header. The checksum of magic 0 covers the frame's magic number too (KAFKA-3160)."""
    covered = LZ4_MAGIC + LZ4_FLAGS if magic == 0 else LZ4_FLAGS
    return LZ4_MAGIC + LZ4_FLAGS + bytes([xxh32(covered) >> 8 & 0xFF])


def xxh32(data: bytes) -> int:
    """Return the xxHash32 of fewer than 16 bytes, with seed 0."""
    assert len(data) < 16
    h, at = (PRIME[5] + len(data)) & MASK, 0
    while len(data) - at >= 4:
        h = _turned(h + int.from_bytes(data[at : at + 4], "little") * PRIME[3] & MASK, 17) * PRIME[4] & MASK
        at += 4
    for byte in data[at:]:
        h = _turned(h + byte * PRIME[5] & MASK, 11) * PRIME[1] & MASK
    h = (h ^ h >> 15) * PRIME[2] & MASK
    h = (h ^ h >> 13) * PRIME[3] & MASK
    return h ^ h >> 16


def _turned(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & MASK


def decompress(codec: int, data: bytes, magic: int = 1) -> bytes:
    """Return the plain bytes. Raises Malformed; in magic 0 the checksum of an lz4 frame's header is not
    looked at, as in Kafka.
    """
    try:
        if codec == GZIP:
            return zlib.decompress(data, wbits=31)
        if codec == SNAPPY:
            return _unsnapped(data)
        if codec == LZ4:
            return _unlz4(data, magic)
    except (zlib.error, cramjam.DecompressionError, struct.error, IndexError) as error:
        raise Malformed(f"{CODECS[codec]}: {error}") from error
    raise Malformed(f"codec {codec}")


def _unsnapped(data: bytes) -> bytes:
    if data[:8] != XERIAL[:8]:
        return bytes(cramjam.snappy.decompress_raw(data))
    at, parts = len(XERIAL), []
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        if not 0 <= size <= len(data) - at - 4:
            raise Malformed(f"a snappy block of {size} bytes")
        parts.append(bytes(cramjam.snappy.decompress_raw(data[at + 4 : at + 4 + size])))
        at += 4 + size
    return b"".join(parts)


def _unlz4(data: bytes, magic: int) -> bytes:
    return bytes(cramjam.lz4.decompress(mended_lz4(data) if magic == 0 else data))


def mended_lz4(data: bytes) -> bytes:
    """Return a frame of magic 0 with the right checksum of its header. Raises Malformed."""
    end = 6 + 8 * (data[4] >> 3 & 1) if len(data) > 4 else 7
    if data[:4] != LZ4_MAGIC or len(data) <= end:
        raise Malformed("no lz4 frame")
    return data[:end] + bytes([xxh32(data[4:end]) >> 8 & 0xFF]) + data[end + 1 :]
