"""Answers to Fetch as bytes: what is written is read, by either way; nothing else is taken for one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from segstore.protocol.codec import decode
from segstore.protocol.fetch_bytes import empty_answer, partition_answer
from segstore.protocol.primitives import behind_tags
from segstore.protocol.template import MessageTemplate

TOPIC_ID, SESSION = b"an id of a topic", 0x31323334
VERSIONS = range(4, 19)


TOLD = 70, 60, 50
"""High watermark, last stable offset and log start offset."""


def form(version: int, **fields: Any) -> MessageTemplate:
    given = {"topic": "t", "topic_id": TOPIC_ID, "partition": 3, "committed": False, "session_id": SESSION}
    return partition_answer(version, **{**given, **fields})


def written(answer: MessageTemplate, data: bytes) -> bytes:
    """An answer without its size."""
    out, at = answer.fill((7, *TOLD[: len(answer.holes) - 1]), len(data))
    out[at:at] = data
    assert int.from_bytes(out[:4], "big") == len(out) - 4
    return bytes(out[4:])


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 20_000])
@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_written_is_read(version: int, size: int) -> None:
    made, data = form(version), random.Random(size).randbytes(size)
    answer = written(made, data)
    assert made.match(memoryview(answer)) == (7, *TOLD[: 3 if version >= 5 else 2], data)
    at = behind_tags(memoryview(answer), 4) if version >= 12 else 4
    body = decode("FetchResponse", version, memoryview(answer)[at:])
    (part,) = body.responses[0].partitions
    assert (part.partition_index, bytes(part.records or b""), part.high_watermark) == (3, data, 70)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_tells_what_comes_before_its_records_as_soon_as_that_is_here(version: int) -> None:
    made, data = form(version), random.Random(version).randbytes(300)
    answer = memoryview(written(made, data))
    at = bytes(answer).index(data)
    told = (7, *TOLD[: 3 if version >= 5 else 2]), at, at + len(data)
    for here in range(len(answer)):
        assert made.begin(answer[:here], len(answer)) == (told if here >= at else None), here
        assert made.begin(answer[:here], len(answer) + 1) is None
    assert made.records is not None
    assert made.records.end == answer[at + len(data) :]


OTHERS: dict[str, Any] = {
    "another topic": {"topic": "u", "topic_id": bytes(16)},
    "another partition": {"partition": 4},
    "another session": {"session_id": SESSION + 1},
    "aborted transactions": {"committed": True},
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("version", [7, 12, 13, 18])
def test_another_answer_is_not_read(version: int, name: str) -> None:
    answer = written(form(version, **OTHERS[name]), b"records")
    assert form(version).match(memoryview(answer)) is None


@pytest.mark.parametrize("version", [7, 12, 18])
def test_errors_and_answers_of_nothing_are_not_read(version: int) -> None:
    empty = bytes(empty_answer(version, SESSION).fill((7,))[0][4:])
    assert form(version).match(memoryview(empty)) is None
    answer = bytearray(written(form(version), b"records"))
    for at in range(len(answer)):
        for other in (answer[:at], answer[:at] + b"\x80" * 6):
            same_size = len(other) == len(answer)  # then records may be what was changed
            assert same_size or form(version).match(memoryview(bytes(other))) is None


@pytest.mark.parametrize("version", [7, 18])
def test_damaged_answers_are_not_read_as_others(version: int, rng: random.Random) -> None:
    """But for what the log tells and for the records, each byte counts."""
    made, data = form(version), b"records of a log"
    answer = written(made, data)
    for at in range(len(answer)):
        damaged = bytearray(answer)
        damaged[at] ^= 1 << rng.randrange(8)
        found = made.match(memoryview(bytes(damaged)))
        if found is not None:
            assert sum(one != other for one, other in zip(found, (7, *TOLD, data), strict=True)) == 1
