"""Templates of requests: holes are where the fields are, and every other byte counts, in Python and in C."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from wire_client import request

from segstore._native import held, lib
from segstore.protocol.codec import structs
from segstore.protocol.primitives import CORRELATION_ID
from segstore.protocol.template import (
    CORRELATION_ID as NUMBER,
)
from segstore.protocol.template import (
    Hole,
    MessageField,
    MessageTemplate,
    RecordsFrame,
    request_template,
)
from segstore.server.apis import read_body, read_header
from segstore.storage.log.exchange import NativeExchange

_Fetch = structs("FetchRequest")
VERSIONS = range(7, 19)


def fetch(
    version: int, number: int = 7, epoch: int = 3, offset: int = 1 << 40, client: str = "wire"
) -> bytes:
    """A request of a fetch session that names one partition, without its size."""
    part = _Fetch.FetchPartition(partition=2, fetch_offset=offset, partition_max_bytes=1 << 20)
    name: dict[str, Any] = {"topic_id": b"i" * 16} if version >= 13 else {"topic": "topic"}
    topics = [_Fetch.FetchTopic(**name, partitions=[part])]
    fields = {"session_id": 99, "session_epoch": epoch, "topics": topics}
    return request("Fetch", version, number, "wire", **fields)[4:]


def learned(frame: bytes) -> MessageTemplate | None:
    data = memoryview(frame)
    header = read_header(data)
    body = read_body(header, data)
    fields = [
        MessageField(body, "session_epoch"),
        MessageField(body.topics[0].partitions[0], "fetch_offset"),
    ]
    return request_template(data, header.body_at, header.version, body, fields)


def template(frame: bytes) -> MessageTemplate:
    found = learned(frame)
    assert found is not None
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_holes_have_the_fields(version: int, rng: random.Random) -> None:
    made = template(fetch(version))
    assert [hole.name for hole in made.holes] == [NUMBER, "session_epoch", "fetch_offset"]
    for _ in range(20):
        values = (
            rng.randrange(-(1 << 31), 1 << 31),
            rng.randrange(1 << 31),
            rng.randrange(-(1 << 63), 1 << 63),
        )
        frame = fetch(version, *values)
        assert made.match(memoryview(frame)) == values
        assert bytes(made.fill(values)[0][4:]) == frame
    assert made.match(memoryview(frame + b"\0")) is None
    assert made.match(memoryview(frame[:-1])) is None


def test_a_request_with_unknown_tags_has_no_template() -> None:
    frame = fetch(12)
    assert frame.endswith(b"\0")
    assert learned(frame[:-1] + b"\x01\x09\x02ab") is None


def outside(made: MessageTemplate) -> Iterator[int]:
    """The places of bytes that are in no hole."""
    holes = {at for hole in made.holes for at in range(hole.at, hole.at + hole.width)}
    return (at for at in range(len(made.front)) if at not in holes)


@pytest.mark.parametrize("version", [7, 12, 13, 18])
def test_each_byte_outside_of_the_holes_counts(version: int) -> None:
    """Each bit of each byte, for Python and for the C that receives the next fetch of a standby."""
    frame = fetch(version)
    made, counts = template(frame), set()
    exchange = NativeExchange(made, None)
    memory = held("uint8_t[]", np.zeros(1 << 12, np.uint8))
    mine, other = socket.socketpair()
    exchange.c.epoch = 3

    def by_c(data: bytes) -> int:
        other.sendall(len(data).to_bytes(4, "big") + data)
        exchange.begin(memory)
        return int(lib.seg_exchange_next(mine.fileno(), exchange.c))

    with closing(mine), closing(other):
        assert by_c(frame) == 1 << 40
        for at in range(len(frame)):
            for bit in range(8):
                data = bytearray(frame)
                data[at] ^= 1 << bit
                if made.match(memoryview(bytes(data))) is None:
                    counts.add(at)
                    assert by_c(data) == lib.SEG_SLOW, at
        assert counts == {*outside(made)}
        assert by_c(fetch(version, epoch=4)) == lib.SEG_SLOW, "the epoch is expected"
        assert by_c(fetch(version, number=-1, offset=5)) == 5


@pytest.mark.parametrize("is_compact", [True, False])
def test_records_lie_between_known_bytes(is_compact: bool) -> None:
    hole = Hole(NUMBER, CORRELATION_ID.start, 4)
    made = MessageTemplate(b"headnumbmore", [hole], RecordsFrame(is_compact, b"end"))
    for size in (0, 1, 127, 128, 40_000):
        out, at = made.fill((5,), size)
        out[at:at] = b"r" * size
        message = memoryview(bytes(out[4:]))
        assert made.match(message) == (5, b"r" * size)
        for other in (
            message[:-1],
            bytes(message) + b"d",
            bytes(message[:-1]) + b"x",
            b"H" + bytes(message[1:]),
        ):
            assert made.match(memoryview(other)) is None
    for short in range(12):
        assert made.match(memoryview(b"headnumbmore")[:short]) is None
