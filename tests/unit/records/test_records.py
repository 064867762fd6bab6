"""Records: what a broker wrote reads as its consumer read it; slices, lazy columns, Arrow, damage."""

from __future__ import annotations

import gc
import pickle
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from partitions import Partition

from segstore._native import lib
from segstore.errors import CorruptRecordError, InvalidArgumentError, InvalidTypeError
from segstore.records import (
    CODECS,
    CONTROL_FLAG,
    HEADER_SIZE,
    Columns,
    Record,
    Records,
    batch_type,
    decode,
    empty_records,
    encode,
    scan,
)
from segstore.records import decode as decode_module

VALUES = [b"a", None, b"", b"ddd", b"e" * 200, None]
KEYS = [None, b"k", b"", None, b"kkk", b""]
HEADERS: list[list[tuple[str, bytes | None]]] = [
    [],
    [("h", b"1"), ("h", None)],
    [],
    [("", b"")],
    [("ö", b"\xff")],
    [],
]
TIMES = [5, 6, 7, 8, 9, 10]
EXPECTED = [Record(i, *row) for i, row in enumerate(zip(TIMES, KEYS, VALUES, HEADERS, strict=True))]


def blob(codec: int = 0, batch_bytes: int = 100, **others: Any) -> bytes:
    given: dict[str, Any] = {"values": VALUES, "keys": KEYS, "timestamps": TIMES, "headers": HEADERS} | others
    return b"".join(bytes(chunk.data) for chunk in encode(Columns(**given), codec, None, batch_bytes))


def read(data: bytes, **options: Any) -> Records:
    batches, _ = scan(data)
    return decode(data, batches, "some.log", **options)


@pytest.fixture(params=range(5), ids=CODECS)
def records(request: pytest.FixtureRequest) -> Records:
    return read(blob(request.param))


@pytest.mark.kind("costly unit tests")
def test_records_that_a_broker_wrote(broker_partition: Partition) -> None:
    """As its consumer received them; control batches left out; also as Arrow."""
    got, kinds, epochs, rows = [], [], [], []
    for path in sorted(broker_partition.path.glob("*.log")):
        data = path.read_bytes()
        batches, end = scan(data)
        assert (end.position, end.status) == (len(data), lib.SEG_END)
        records = decode(data, batches[batches["attributes"] & CONTROL_FLAG == 0], str(path))
        got += list(records)
        kinds += records.timestamp_types.tolist()
        epochs += records.leader_epochs.tolist()
        rows += records.to_arrow().to_pylist()
    expected = broker_partition.expected()
    assert got == [Record(e.offset, e.timestamp, e.key, e.value, e.headers) for e in expected]
    assert kinds == [int(e.timestamp_type == "LogAppendTime") for e in expected]
    assert epochs == [e.leader_epoch for e in expected]
    assert [arrow_record(row) for row in rows] == got


def arrow_record(row: dict[str, Any]) -> Record:
    headers = [(pair["key"], pair["value"]) for pair in row["headers"] or []]
    return Record(row["offset"], row["timestamp"], row["key"], row["value"], headers)


def test_columns(records: Records) -> None:
    assert list(records) == EXPECTED
    assert len(records) == 6
    assert records.offsets.tolist() == list(range(6))
    assert records.timestamps.tolist() == TIMES
    assert records.values == VALUES
    assert records.keys == KEYS
    assert records.headers == HEADERS
    assert records.next_offset == 6
    assert records.timestamp_types.tolist() == [0] * 6
    assert records.nbytes > sum(len(v or b"") for v in VALUES)
    assert repr(records) == "<Records: 6, offsets 0 to 5, next offset 6>"


SLICES = [
    slice(None),
    slice(2),
    slice(2, 4),
    slice(-2, None),
    slice(4, 2),
    slice(9, 99),
    slice(None, None, 2),
]
SLICES += [slice(None, None, -1), slice(0, 0)]


@pytest.mark.parametrize("cut", SLICES, ids=str)
def test_slices(records: Records, cut: slice) -> None:
    assert list(records[cut]) == EXPECTED[cut]
    assert list(records.values[cut]) == VALUES[cut]
    assert records.keys[cut] == KEYS[cut]
    assert records.headers[cut] == HEADERS[cut]
    assert [records[cut][i] for i in range(len(EXPECTED[cut]))] == EXPECTED[cut]


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        (slice(None), 6),
        (slice(3, None), 6),
        (slice(3), 3),
        (slice(2, 2), 2),
        (slice(9, 9), 6),
        (slice(4, 2), 4),
        (slice(None, None, 2), 6),
    ],
    ids=str,
)
def test_next_offset_of_a_slice_goes_on_behind_it(records: Records, cut: slice, expected: int) -> None:
    assert records[cut].next_offset == expected


def test_single_elements(records: Records) -> None:
    for i in range(-6, 6):
        assert records[i] == EXPECTED[i]
        assert records.values[i] == VALUES[i]
        assert records.headers[i] == HEADERS[i]
    columns: tuple[Any, ...] = (records, records.keys, records.headers)
    for column in columns:
        for i in (6, -7):
            with pytest.raises(IndexError):
                column[i]


@pytest.mark.parametrize("offset", range(-1, 8))
def test_from_offset(records: Records, offset: int) -> None:
    assert list(records.from_offset(offset)) == [r for r in EXPECTED if r.offset >= offset]
    assert records.from_offset(offset).next_offset == 6


@pytest.mark.parametrize("offset", [0, 5, 6, 7, 9, 10, 11, 99, 100, 101])
def test_from_offset_where_offsets_have_gaps(offset: int) -> None:
    offsets = np.array([5, 6, 9, 10, 20, 100])
    gaps = read(blob(offsets=offsets))
    assert gaps.from_offset(offset).offsets.tolist() == [o for o in offsets.tolist() if o >= offset]


def test_take(records: Records) -> None:
    mask = np.array([True, False, True, False, False, True])
    taken = records.take(mask)
    assert list(taken) == [EXPECTED[0], EXPECTED[2], EXPECTED[5]]
    assert taken.next_offset == 6
    assert taken.to_arrow()["offset"].to_pylist() == [0, 2, 5]


@pytest.mark.parametrize("wrong", [None, "1", b"1", 1.0, float("nan"), [], np.array([1, 2])], ids=repr)
def test_from_an_offset_that_is_none(records: Records, wrong: Any) -> None:
    with pytest.raises(InvalidTypeError, match=f"offset must be an int, not {type(wrong).__name__}"):
        records.from_offset(wrong)


@pytest.mark.parametrize("wrong", [None, True, 5, [True], [[True] * 6], [1] * 6, "x"], ids=repr)
def test_take_with_a_mask_that_is_none(records: Records, wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"mask is .* of shape .*must be bool of shape \(6,\)"):
        records.take(wrong)


def test_equality_and_pickle(records: Records) -> None:
    for part in (records, records[2:4], records[:0]):
        again = pickle.loads(pickle.dumps(part))
        assert again == part
        assert again.next_offset == part.next_offset
    assert records != records[1:]
    assert records != EXPECTED
    assert records.values != ["a"]
    assert records.values != b"a"
    assert records.values != 5


def test_empty() -> None:
    empty = empty_records(42)
    assert (len(empty), empty.next_offset, list(empty)) == (0, 42, [])
    assert (empty.values, empty.headers, empty.from_offset(3).next_offset) == ([], [], 42)
    assert empty[0:5].next_offset == 42
    table = empty.to_arrow()
    assert table.num_rows == 0
    assert table.schema == read(blob()).to_arrow().schema
    assert len(decode(b"", np.empty(0, batch_type()), "x", next_offset=7)) == 0


def test_records_hold_what_they_need() -> None:
    data = bytearray(blob())
    records = decode(bytes(data), scan(data)[0], "x")
    value = records.values[4]
    data[:] = bytes(len(data))
    del data
    gc.collect()
    assert list(records) == EXPECTED
    assert value == VALUES[4]


@pytest.mark.parametrize("lend", [bytes, bytearray, memoryview], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("codec", [0, 4], ids=["none", "zstd"])
def test_buffers_that_may_be_read(lend: Callable[[bytes], Any], codec: int) -> None:
    data = blob(codec)
    batches, _ = scan(lend(data), position=1000)
    assert list(decode(lend(data), batches, "x", position=1000)) == EXPECTED


def test_uncompressed_bytes_are_not_copied() -> None:
    data = blob()
    assert read(data).arena is data


@pytest.mark.parametrize("n", [1, 8, 9, 40, 600, 5000])
def test_iteration_has_no_seams(n: int) -> None:
    values = [b"%d" % i if i % 7 else None for i in range(n)]
    headers = [[("n", b"%d" % i)] * (i % 3) for i in range(n)]
    records = read(blob(0, 700, values=values, keys=values, timestamps=range(n), headers=headers))
    assert [r.value for r in records] == values
    assert list(records.keys) == values
    assert list(records.headers) == headers
    assert [r.offset for r in records] == list(range(n))


def test_headers_are_a_records_own() -> None:
    first, second = read(blob(values=[b"", b""], keys=None, timestamps=None, headers=None))
    first.headers.append(("x", b""))
    assert second.headers == []


def test_a_header_name_that_is_no_utf8_is_replaced_as_kafka_does() -> None:
    data = bytearray(blob(0, 1 << 20, values=[b"v"], keys=None, timestamps=None, headers=[[("ab", b"")]]))
    data[data.index(b"ab")] = 0xFF
    batches, _ = scan(data, check_crcs=False)
    records = decode(bytes(data), batches, "x")
    assert records[0].headers == [("\ufffdb", b"")]
    assert records.to_arrow()["headers"].to_pylist() == [[{"key": "\ufffdb", "value": b""}]]


def test_arrow(records: Records) -> None:
    for part in (records, records[1:4], records[::2]):
        table = part.to_arrow()
        table.validate(full=True)
        assert [arrow_record(row) for row in table.to_pylist()] == list(part)
        assert pa.table(part).equals(table)
    kinds = [str(kind) for kind in records.to_arrow().schema.types]
    assert kinds[:4] == ["int64", "int64", "binary", "binary"]
    assert records.to_arrow()["headers"].null_count == 3


def test_arrow_columns(records: Records) -> None:
    table = records.to_arrow(columns=["value", "offset"])
    assert table.column_names == ["value", "offset"]
    assert table["value"].to_pylist() == VALUES
    with pytest.raises(
        InvalidArgumentError, match="column 'x': allowed are offset, timestamp, key, value, headers"
    ):
        records.to_arrow(columns=["x"])


def test_arrow_of_more_than_fits_a_chunk(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segstore.records.arrow.MOST_BYTES", 150)
    table = records.to_arrow()
    assert table["value"].num_chunks > 1
    assert [arrow_record(row) for row in table.to_pylist()] == EXPECTED


# --- scan


def test_scan_takes_a_part() -> None:
    data = blob(0, 1)
    whole, end = scan(data, position=100)
    assert (len(whole), end.position, end.status) == (6, 100 + len(data), lib.SEG_END)
    part, end = scan(data, from_offset=2, end_offset=4)
    assert (part["base_offset"].tolist(), end.status, end.last_offset) == ([2, 3], lib.SEG_STOP, 3)
    part, end = scan(data, from_offset=4, max_bytes=1)
    assert (part["base_offset"].tolist(), end.status) == ([4], lib.SEG_FULL)
    part, end = scan(data[:-1])
    assert (len(part), end.status, end.need) == (5, lib.SEG_SHORT, int(whole["size"][5]))


DAMAGES = {
    "CRC": (70, lib.SEG_BAD_CRC),
    "magic": (16, lib.SEG_BAD_MAGIC),
    "length": (8, lib.SEG_BAD_LENGTH),
    "offsets": (0, lib.SEG_BAD_OFFSETS),
    "count": (57, lib.SEG_BAD_COUNT),
}


@pytest.mark.parametrize(("at", "status"), DAMAGES.values(), ids=DAMAGES)
def test_scan_stops_at_damage(at: int, status: int) -> None:
    data = bytearray(blob(0, 1))
    second = int(scan(data)[0]["position"][1])
    data[second + at] ^= 0x80
    batches, end = scan(data)
    assert len(batches) == 1
    assert end.position == second
    assert end.status == status


def test_scan_without_crcs() -> None:
    data = bytearray(blob(0, 1))
    data[HEADER_SIZE + 1] ^= 1
    assert len(scan(data, check_crcs=False)[0]) == 6


# --- damage that the CRC does not tell


def broken(codec: int, change: Callable[[Any], None], n: int = 1) -> tuple[bytes, Any]:
    data = blob(codec, 1)
    batches, _ = scan(data)
    change(batches[n])
    return data, batches


LIES: dict[str, tuple[int, Callable[[Any], None], str]] = {
    "more records": (0, lambda b: b.__setitem__("count", 2), "fewer records"),
    "many records": (0, lambda b: b.__setitem__("count", 2**31 - 1), "count 2147483647 is impossible"),
    "many records, compressed": (4, lambda b: b.__setitem__("count", 2**31 - 1), "is impossible"),
    "no record": (0, lambda b: b.__setitem__("count", 0), "bytes are left"),
    "another codec": (0, lambda b: b.__setitem__("attributes", 1), "gzip"),
    "unknown codec": (0, lambda b: b.__setitem__("attributes", 7), "codec 7 is unknown"),
    "no codec": (4, lambda b: b.__setitem__("attributes", 0), "varint|disagree"),
    "a short size": (0, lambda b: b.__setitem__("size", b["size"] - 1), "disagree|varint"),
}


@pytest.mark.parametrize(("codec", "change", "reason"), LIES.values(), ids=LIES)
def test_damage_within_a_batch(codec: int, change: Callable[[Any], None], reason: str) -> None:
    data, batches = broken(codec, change)
    with pytest.raises(CorruptRecordError, match=reason) as caught:
        decode(data, batches, "00.log")
    assert caught.value.file == "00.log"
    assert caught.value.position == int(batches["position"][1])
    assert caught.value.offset == 1


@pytest.mark.parametrize("codec", [1, 2, 3, 4], ids=CODECS[1:])
def test_a_bomb_is_refused(codec: int) -> None:
    data = blob(codec, 1 << 30, values=[bytes(10 << 20)], keys=None, timestamps=None, headers=None)
    batches, _ = scan(data)
    assert len(decode(data, batches, "x", limit=11 << 20)) == 1
    with pytest.raises(CorruptRecordError, match=r"some.log: .* (10,000 bytes allowed|too small)"):
        decode(data, batches, "some.log", limit=10_000)


@pytest.mark.parametrize("codec", range(5), ids=CODECS)
def test_random_damage_gives_records_or_an_error(codec: int, rng: random.Random) -> None:
    good = blob(codec)
    for _ in range(500):
        data = bytearray(good)
        for _ in range(rng.choice((1, 1, 3))):
            data[rng.randrange(HEADER_SIZE, len(data))] = rng.randrange(256)
        batches, _ = scan(data, check_crcs=False)
        try:
            records = decode(bytes(data), batches, "x", limit=1 << 20)
        except CorruptRecordError:
            continue
        list(records)
        records.to_arrow().validate(full=True)


# --- how much work a read is


def test_a_small_read_makes_one_call_to_scan_and_one_to_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Counted:
        def __getattr__(self, name: str) -> Any:
            if name.startswith("seg_"):
                calls.append(name)
            return getattr(lib, name)

    monkeypatch.setattr(sys.modules[decode_module.__module__], "lib", Counted())
    records = read(blob(0, 1))
    assert (len(records.from_offset(3)), records[0]) == (3, EXPECTED[0])
    assert calls == ["seg_scan", "seg_decode"]
