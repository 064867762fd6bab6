"""Messages of magic 0 and 1 decoded straight from where they lie, or brought up: the records are the same."""

from __future__ import annotations

import pickle

import message_sets
import numpy as np
import pytest
from drawn_sets import EACH_KIND, KINDS, Drawn, entry, joined, logs, some
from hypothesis import given, settings
from message_sets import GZIP, NONE, Message

from segstore.errors import CorruptRecordError
from segstore.records import Records, bring_up, concat, decode, scan
from segstore.records.records import picked


def read(data: bytes, position: int = 0, **options: int) -> Records:
    headers, _ = scan(data, position)
    return decode(data, headers, "input", position, **options)


def said(records: Records) -> list[Message]:
    kinds = records.timestamp_types.tolist()
    return [
        Message(r.offset, r.timestamp, r.key, r.value, bool(kind))
        for r, kind in zip(records, kinds, strict=True)
    ]


def through_batches(data: bytes) -> Records:
    """The same, but all of it is brought up before."""
    made, headers = bring_up(data, scan(data)[0])
    return decode(made, headers, "input")


LARGE = [Message(0, 5, b"k", bytes(1 << 24)), Message(1, 5, None, b"v")]
STAMPED = [Message(i, 1000 + i // 3, b"k", b"v", True) for i in range(10)]
FAR = [Message(offset, 7, None, b"v") for offset in (1, 5, 1 << 31, (1 << 31) + 6)]
EMPTY = [Message(0, 1, b"", b""), Message(4, 9, None, b""), Message(5, 3, b"k", b"")]
CASES: dict[str, Drawn] = {
    **KINDS,
    "each kind": EACH_KIND,
    "one message": entry(0, NONE, some(3, 1)),
    "no values": entry(1, NONE, [Message(i, i, b"k", None) for i in range(4)]),
    "some values": entry(1, NONE, [Message(i, i, b"k", None if i % 3 else b"v") for i in range(9)]),
    "empty keys and values": entry(1, NONE, EMPTY),
    "a value of 16 MiB": entry(1, NONE, LARGE),
    "times of append": entry(1, NONE, STAMPED),
    "offsets far apart": entry(1, NONE, FAR),
    "both magics by turns": joined([entry(i % 2, NONE, some(3 * i, 2)) for i in range(8)]),
    "wrappers between plain ones": joined([entry(1, (NONE, GZIP)[i % 2], some(5 * i, 3)) for i in range(6)]),
    "batches between messages": joined([entry((1, 2)[i % 2], NONE, some(5 * i, 3)) for i in range(6)]),
    "more than a few": entry(1, NONE, some(0, 500)),
}


@pytest.mark.parametrize("name", CASES)
def test_both_ways_say_the_same(name: str) -> None:
    drawn = CASES[name]
    records = read(drawn.data)
    assert said(records) == said(through_batches(drawn.data)) == drawn.messages
    assert records.next_offset == drawn.messages[-1].offset + 1
    assert (records.batches["magic"] == 2).all()
    assert (records.leader_epochs[records.timestamps == -1] == -1).all()
    assert records.headers.tolist() == [[]] * len(records)
    bases = records.batches["base_offset"]
    assert (np.diff(bases) > 0).all()
    assert records.batches["count"].sum() == len(records)


@settings(max_examples=60)
@given(logs())
def test_drawn_logs(drawn: Drawn) -> None:
    assert said(read(drawn.data, 77)) == drawn.messages


@pytest.mark.parametrize("name", ["magic 1, none", "each kind", "some values", "wrappers between plain ones"])
def test_what_is_made_of_records(name: str) -> None:
    """Slices, choices, sums and copies of records that lie among old bytes."""
    drawn = CASES[name]
    records, n = read(drawn.data), len(drawn.messages)
    assert said(pickle.loads(pickle.dumps(records))) == drawn.messages
    assert said(records[2:5]) == drawn.messages[2:5]
    places = np.array([0, 1, 1, n - 1])
    assert said(picked(records, places)) == [drawn.messages[i] for i in places]
    other = read(entry(2, NONE, some(1000, 3)).data)
    assert said(concat([records, other]))[:n] == drawn.messages
    assert records.to_arrow()["value"].to_pylist() == [m.value for m in drawn.messages]
    assert [list(record.headers) for record in concat([records, other])] == [[]] * (n + 3)


@pytest.mark.parametrize("name", ["magic 0, none", "magic 1, gzip", "each kind"])
def test_records_below_the_offset_asked_for_are_left_out(name: str) -> None:
    drawn = CASES[name]
    for offset in range(drawn.messages[-1].offset + 2):
        assert said(read(drawn.data, from_offset=offset)) == [m for m in drawn.messages if m.offset >= offset]


def test_wrappers_end_with_the_one_that_is_too_much() -> None:
    drawn = joined([entry(1, GZIP, [Message(i, 5, None, bytes(5000))]) for i in range(8)])
    records = read(drawn.data, most=12_000)
    assert records.offsets.tolist() == [0, 1, 2]
    assert records.next_offset == 3


def test_lengths_that_are_wrong_are_told() -> None:
    data = bytearray(message_sets.plain(1, some(0, 3)))
    headers, _ = scan(bytes(data))
    at = int(headers["position"][1])
    data[at + 26 : at + 30] = b"\0\0\0\x7f"  # the key's length, behind the back of the CRC
    with pytest.raises(CorruptRecordError) as told:
        decode(bytes(data), headers, "input")
    assert told.value.position == at
