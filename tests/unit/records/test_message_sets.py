"""The oracle of message sets against kafka-python's writers and readers of magic 0 and 1."""

from __future__ import annotations

import struct

import message_sets
import pytest
from drawn_sets import KINDS, Drawn, logs, some
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatch, LegacyRecordBatchBuilder
from message_sets import CODECS, LZ4, Malformed, Message

MAGICS, ALL_CODECS = (0, 1), range(4)


def theirs(magic: int, codec: int, messages: list[Message]) -> bytes:
    """Return what kafka-python writes; a broker gives the wrapper its offset, which no CRC covers."""
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    first = messages[0].offset if magic and codec else 0
    for m in messages:
        assert builder.append(m.offset - first, m.timestamp, m.key, m.value) is not None
    data = bytes(builder.build())
    return struct.pack(">q", messages[-1].offset) + data[8:] if codec else data


def read_by_them(data: bytes) -> list[Message]:
    """Return what kafka-python reads, with all CRCs checked."""
    found = []
    for at, entry in message_sets.entries(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        batch = LegacyRecordBatch(data[at : at + size], entry.magic)
        assert batch.validate_crc()
        for record in batch:
            assert record.validate_crc()
            stamp = -1 if record.timestamp is None else record.timestamp
            found.append(Message(record.offset, stamp, record.key, record.value, record.timestamp_type == 1))
    return found


@pytest.mark.parametrize("codec", ALL_CODECS, ids=CODECS)
@pytest.mark.parametrize("magic", MAGICS)
def test_the_oracle_reads_what_kafka_python_writes(magic: int, codec: int) -> None:
    messages = some(41, 50)
    expected = [m._replace(timestamp=-1) for m in messages] if magic == 0 else messages
    assert message_sets.messages(theirs(magic, codec, messages)) == expected


@settings(max_examples=60)
@given(logs(magics=(0, 1)))
def test_kafka_python_reads_what_the_oracle_writes(drawn: Drawn) -> None:
    assert read_by_them(drawn.data) == drawn.messages
    assert message_sets.messages(drawn.data) == drawn.messages
    assert [at for at, _ in message_sets.entries(drawn.data)] == [0, *drawn.ends[:-1]]


@pytest.mark.parametrize("name", KINDS)
def test_the_oracle_says_no(name: str) -> None:
    """Each byte of a message counts, and each that is missing; the offset alone is under no CRC."""
    data = KINDS[name].data
    offsets = {begin + i for begin in (0, *KINDS[name].ends) for i in range(8)}
    for at in set(range(len(data))) - offsets:
        with pytest.raises(Malformed):
            message_sets.messages(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    for end in set(range(1, len(data))) - set(KINDS[name].ends):
        with pytest.raises(Malformed):
            message_sets.messages(data[:end])


def test_the_lz4_header_of_magic_0_is_the_wrong_one() -> None:
    """Its byte is known from Kafka's own files; kafka-python takes each in its magic only."""
    assert message_sets.lz4_header(1)[6] == 0x82
    assert message_sets.lz4_header(0)[6] != 0x82
    data = message_sets.compress(LZ4, b"x" * 100, magic=0)
    assert message_sets.decompress(LZ4, data, magic=0) == b"x" * 100
    with pytest.raises(Malformed):
        message_sets.decompress(LZ4, data, magic=1)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5), st.booleans())
def test_relative_and_absolute_offsets_say_the_same(steps: list[int], absolute: bool) -> None:
    offsets = [1000 + sum(steps[:i]) + i for i in range(len(steps))]
    messages = [Message(offset, 5, None, b"v") for offset in offsets]
    data = message_sets.wrap(1, 1, messages, absolute=absolute)
    assert message_sets.messages(data) == messages
