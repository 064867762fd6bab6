"""Damaged and hostile messages: they give InvalidRequestError and nothing else, and take little memory."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest
from drawn_messages import drawn, encoded

from segstore.errors import InvalidRequestError
from segstore.protocol.codec import decode
from segstore.protocol.definitions import messages
from segstore.protocol.primitives import LONGEST_STRING, MOST_ELEMENTS, uvarint
from segstore.server.apis import Api, read_header, served

NAMES = sorted(name for name, definition in messages().items() if definition.kind == "request")
LENGTHS = tuple(struct.pack(">i", n) for n in (-1, -2, 0, 1, 1 << 16, 0x7FFFFFFF, -(1 << 31)))
COMPACT = (
    *(b"\x00", b"\x01", b"\x80", b"\xff\xff\xff\xff\x0f"),
    *(b"\xff\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x08"),
)


def versions_of(name: str) -> tuple[int, ...]:
    """The first and the last version, and those between which the encoding changes."""
    definition = messages()[name]
    low, high = definition.valid
    first = definition.flexible.low
    return tuple(sorted({low, high, *(v for v in (first - 1, first) if low <= v <= high)}))


def attempt(name: str, version: int, data: bytes | memoryview) -> bool:
    """Return whether bytes are a message; else they must be refused by InvalidRequestError."""
    try:
        decode(name, version, memoryview(data))
    except InvalidRequestError:
        return False
    return True


@pytest.mark.parametrize("name", NAMES)
def test_every_beginning_of_a_message_is_refused(name: str, rng: random.Random) -> None:
    for version in versions_of(name):
        data = encoded(drawn(name, version, rng, lengths=(0, 2)), version)
        assert [n for n in range(len(data)) if attempt(name, version, data[:n])] == []


@pytest.mark.parametrize("name", NAMES)
def test_mutated_lengths_and_bytes(name: str, rng: random.Random) -> None:
    for version in versions_of(name):
        data = encoded(drawn(name, version, rng, lengths=(0, 2)), version)
        for _ in range(60):
            at = rng.randrange(len(data) + 1)
            put = rng.choice((*LENGTHS, *COMPACT, rng.randbytes(1)))
            behind = at + rng.choice((0, len(put)))
            attempt(name, version, data[:at] + put + data[behind:])


@pytest.mark.parametrize("version", [1, 12], ids=["not flexible", "flexible"])
def test_a_count_beyond_the_bytes_that_are_left_takes_no_memory(version: int) -> None:
    count = uvarint(0x7FFFFFFF) if version == 12 else struct.pack(">i", 0x7FFFFFFE)
    data = memoryview(count + bytes(100))
    with pytest.raises(InvalidRequestError, match="a length is 2147483646, and 100 bytes are left"):
        decode("MetadataRequest", version, data)
    # Threads of earlier tests allocate, too: the least of several peaks is the decoder's.
    assert min(most_memory(version, data) for _ in range(10)) < 10_000


def most_memory(version: int, data: memoryview) -> int:
    """The most bytes that this process allocates while a message is decoded."""
    tracemalloc.start()
    try:
        attempt("MetadataRequest", version, data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_elements_of_nested_arrays_are_counted_together() -> None:
    inner = 100
    outer = MOST_ELEMENTS // inner
    data = memoryview(uvarint(outer + 1) + deleted(inner) * outer + bytes(5))
    with pytest.raises(InvalidRequestError, match=f"more than {MOST_ELEMENTS} elements"):
        decode("DeleteRecordsRequest", 2, data)


def deleted(partitions: int) -> bytes:
    """One topic of DeleteRecords version 2."""
    one = struct.pack(">iq", 0, -1) + b"\x00"
    return uvarint(2) + b"t" + uvarint(partitions + 1) + one * partitions + b"\x00"


def test_a_compact_string_is_not_longer_than_an_old_one() -> None:
    text = b"x" * (LONGEST_STRING + 1)
    data = uvarint(len(text) + 1) + text + bytes(20)
    with pytest.raises(InvalidRequestError, match="a string has 32,768 bytes; at most 32,767"):
        decode("HeartbeatRequest", 4, memoryview(data))


def heartbeat(tags: bytes) -> bytes:
    """Heartbeat version 4, with these tagged fields."""
    return uvarint(2) + b"g" + struct.pack(">i", 1) + uvarint(2) + b"m" + b"\x00" + tags


@pytest.mark.parametrize(
    "tags",
    [
        pytest.param(b"\x02\x01\x00\x01\x00", id="twice"),
        pytest.param(b"\x02\x02\x00\x01\x00", id="out of order"),
        pytest.param(b"\x01\x05\x02x", id="longer than the message"),
        pytest.param(b"\x02\x05\x00", id="fewer than told"),
        pytest.param(b"\xff\xff\xff\xff\x0f", id="very many"),
        pytest.param(b"\x80\x80\x80\x80\x80\x00", id="a varint of six bytes"),
    ],
)
def test_damaged_tagged_fields_are_refused(tags: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        decode("HeartbeatRequest", 4, memoryview(heartbeat(tags)))


def test_unknown_tagged_fields_are_skipped() -> None:
    plain = decode("HeartbeatRequest", 4, memoryview(heartbeat(b"\x00")))
    assert decode("HeartbeatRequest", 4, memoryview(heartbeat(b"\x02\x05\x02xy\x09\x00"))) == plain


def test_a_tagged_field_of_another_length_than_its_content_is_refused() -> None:
    body = drawn("FetchRequest", 12, random.Random(0))
    body.cluster_id = "cluster"
    data = encoded(body, 12)
    field = b"\x00\x08\x08cluster"
    assert field in data
    for size in (7, 9):
        longer = data.replace(field, b"\x00" + bytes((size,)) + field[2:] + b"x" * (size - 8))
        with pytest.raises(InvalidRequestError):
            decode("FetchRequest", 12, memoryview(longer))


@pytest.mark.parametrize("name", NAMES)
def test_every_beginning_of_a_header_is_refused(name: str) -> None:
    definition = messages()[name]
    version = served(Api(definition.api_key)).high
    data = struct.pack(">hhih", definition.api_key, version, 7, 6) + b"client"
    data += b"\x01\x05\x02xy" if version in definition.flexible else b""
    assert read_header(memoryview(data))[2:] == (7, "client", len(data))
    for n in range(len(data)):
        with pytest.raises(InvalidRequestError):
            read_header(memoryview(data[:n]))
