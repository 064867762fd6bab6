"""Draws logs of all three magics for hypothesis, and what they say; makes small ones of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import message_sets
import oracle
from hypothesis import strategies as st
from message_sets import CODECS, GZIP, LZ4, NO_TIMESTAMP, NONE, SNAPPY, Message

MS = 1_388_000_000_000


class Drawn(NamedTuple):
    """The bytes of a log, what it says, and where its entries end."""

    data: bytes
    messages: list[Message]
    ends: list[int]

    def plus(self, other: Drawn) -> Drawn:
        """Return both, one behind the other."""
        ends = [*self.ends, *(len(self.data) + end for end in other.ends)]
        return Drawn(self.data + other.data, self.messages + other.messages, ends)


NOTHING = Drawn(b"", [], [])


def entry(magic: int, codec: int, messages: Sequence[Message], absolute: bool = False) -> Drawn:
    """Return messages as a log has them: one wrapper, or one record batch, or plain messages."""
    said = [m._replace(timestamp=NO_TIMESTAMP, append_time=False) if magic == 0 else m for m in messages]
    if magic == 2:
        data = _batch(said, codec)
        return Drawn(data, said, [len(data)])
    if codec == NONE:
        parts = [Drawn(data := message_sets.plain(magic, [m]), [m], [len(data)]) for m in said]
        return joined(parts)
    if said[0].append_time:
        said = [m._replace(timestamp=max(m.timestamp for m in said)) for m in said]
    data = message_sets.wrap(magic, codec, said, absolute=absolute)
    return Drawn(data, said, [len(data)])


def joined(parts: Sequence[Drawn]) -> Drawn:
    """Return all of them, one behind the other."""
    found = NOTHING
    for part in parts:
        found = found.plus(part)
    return found


def _batch(messages: Sequence[Message], codec: int) -> bytes:
    """Return one record batch of magic 2."""
    first, stamps = messages[0], [m.timestamp for m in messages]
    attributes = codec | (message_sets.APPEND_TIME if first.append_time else 0)
    records = [oracle.Record(m.offset, m.timestamp, m.key, m.value, []) for m in messages]
    batch = oracle.Batch(
        first.offset,
        -1,
        attributes,
        messages[-1].offset - first.offset,
        stamps[0],
        max(stamps),
        records=records,
    )
    payload = oracle.encode_records(batch)
    return oracle.encode_batch(batch, message_sets.compress(codec, payload) if codec else payload)


def plain_batches(data: bytes) -> bytes:
    """Return record batches with their records decompressed."""
    out = b""
    while data:
        batch, count, payload, size = oracle.split_batch(data)
        codec = batch.attributes & message_sets.CODEC_BITS
        if codec:
            payload = message_sets.decompress(codec, payload)
            batch = replace(batch, attributes=batch.attributes - codec)
        out += oracle.encode_batch(batch, payload, count)
        data = data[size:]
    return out


def some(first: int, count: int, gap: int = 1, append_time: bool = False) -> list[Message]:
    """Return messages with values that tell them apart; among them null and empty keys and values."""
    keys = (b"key", None, b"")
    values = (b"value %d" * 3, b"", None, b"another %d")
    found = []
    for i in range(count):
        value = values[i % 4]
        told = value % ((first + i * gap,) * value.count(b"%d")) if value else value
        stamp = MS if append_time else MS + 10 * i
        found.append(Message(first + i * gap, stamp, keys[i % 3], told, append_time))
    return found


def _each_kind() -> Drawn:
    parts, offset = [], 0
    for magic in (0, 1, 2):
        for codec in (NONE, GZIP, SNAPPY, LZ4):
            for append_time in (False, True) if magic else (False,):
                messages = some(offset, 5, gap=1 + (codec == GZIP), append_time=append_time)
                if magic == 2 and append_time:
                    continue
                parts.append(entry(magic, codec, messages, absolute=codec == LZ4))
                offset = messages[-1].offset + 1 + (codec == SNAPPY)
    back = [
        entry(1, GZIP, some(offset, 3)),
        entry(0, NONE, some(offset + 5, 3)),
        entry(0, LZ4, some(offset + 9, 2)),
    ]
    return joined([*parts, *back])


EACH_KIND = _each_kind()
"""Every magic, codec and kind of time, with gaps; magic 2 in the midst."""
KINDS = {
    f"magic {magic}, {CODECS[codec]}": entry(magic, codec, some(7, 6))
    for magic in (0, 1)
    for codec in range(4)
}

_BYTES = st.none() | st.binary(max_size=20) | st.binary(min_size=120, max_size=200)
_STAMPS = st.just(NO_TIMESTAMP) | st.integers(0, 1 << 41)


@st.composite
def logs(draw: st.DrawFn, magics: Sequence[int] = (0, 1, 2), most: int = 5) -> Drawn:
    """Draw some entries with rising offsets, and gaps between and within them."""
    offset = draw(st.sampled_from((0, 3, 1 << 31, 1 << 40)))
    parts = []
    for _ in range(draw(st.integers(1, most))):
        magic, codec = draw(st.sampled_from(magics)), draw(st.integers(0, 3))
        append_time = magic == 1 and draw(st.booleans())
        stamp = draw(_STAMPS)
        messages = []
        for _ in range(draw(st.integers(1, 6))):
            offset += draw(st.sampled_from((0, 0, 0, 1, 70)))
            at = stamp if append_time else draw(_STAMPS)
            messages.append(Message(offset, at, draw(_BYTES), draw(_BYTES), append_time))
            offset += 1
        parts.append(entry(magic, codec, messages, draw(st.booleans())))
    return joined(parts)
