"""seg_decode, seg_headers and seg_gather on invalid records, and on odd valid ones."""

from __future__ import annotations

import random
from typing import Any

import native_batches as native
import numpy as np
import oracle
import pytest
from bad_records import BAD_RECORDS, LONG_VARINTS, PLAIN, SPANS, TEN, V, rec
from native_batches import (
    INT63,
    NAMES,
    NativeError,
    decode_both,
)
from oracle import Batch, Record

from segstore._native import ffi, held, lib


@pytest.mark.parametrize("name", BAD_RECORDS)
@pytest.mark.parametrize("pad", [0, 64])
def test_decode_refuses(name: str, pad: int) -> None:
    plain, count, error = BAD_RECORDS[name]
    assert decode_both(TEN, count, plain, pad) == (error, None)


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_decode_refuses_it_among_good_records(name: str) -> None:
    """Behind the bad record there is room: the quick reader sees it first."""
    plain, count, _ = BAD_RECORDS[name]
    good = oracle.encode_records(Batch(records=[Record(i, 0, b"k" * 30, b"v" * 30, []) for i in (1, 2, 3)]))
    for data in (plain + good, good + plain):
        error, want = decode_both(Batch(last_offset_delta=9), count + 3, data)
        assert want is None
        assert isinstance(error, str)


@pytest.mark.parametrize("name", LONG_VARINTS)
@pytest.mark.parametrize("pad", [0, 64])
def test_varints_may_be_longer_than_need_be(name: str, pad: int) -> None:
    got, want = decode_both(TEN, 1, LONG_VARINTS[name], pad)
    assert want is not None
    assert got == want
    behind = LONG_VARINTS[name] + rec(b"\0\0" + V(9) + V(60) + b"k" * 60 + V(-1) + V(0))
    got, want = decode_both(TEN, 2, behind)
    assert want is not None
    assert got == want


def test_a_cut_of_the_payload_at_every_byte() -> None:
    plain = oracle.encode_records(native.ONE)
    for cut in range(len(plain)):
        error, want = decode_both(native.ONE, 2, plain[:cut])
        assert (want, error in ("SEG_E_FEW", "SEG_E_RECORD", "SEG_E_VARINT")) == (None, True), (
            f"cut at {cut}: {error}"
        )


# Runs of like records, which are decoded a piece of 64 at a time by what the first two of them are like.


def like_records(rng: random.Random, count: int) -> list[Record]:
    """Records, most of which are like the one before: other sizes, nulls, headers and gaps come between."""
    records: list[Record] = []
    offset, stamp, key, value = 10, 1000, None, b"v" * rng.choice([0, 1, 9, 60, 100])
    steps, change = rng.choice([[1], [1, 1, 2], [1, 300]]), rng.choice([0, 0.01, 0.2])
    pace = rng.choice([0, 1, 700, -1, 1 << 20, 1 << 40])
    for _ in range(count):
        if rng.random() < change:
            key = rng.choice([None, b"", b"k", b"k" * 40, b"k" * 70])
            value = rng.choice([None, b"", b"v", rng.randbytes(rng.randint(2, 200))])
        if value:
            value = rng.randbytes(len(value))
        headers = [(b"h", rng.choice([None, b"", b"x"]))] if rng.random() < change / 2 else []
        records.append(Record(offset, stamp, key, value, headers))
        offset, stamp = offset + rng.choice(steps), stamp + rng.choice([pace, pace, pace // 2])
    return records


def batch_of(records: list[Record], attributes: int = 0) -> Batch:
    delta = records[-1].offset - 10
    return Batch(10, 4, attributes, delta, 1000, records[-1].timestamp, records=records)


@pytest.mark.parametrize("turn", range(40))
def test_like_records(turn: int, rng: random.Random) -> None:
    batch = batch_of(like_records(rng, rng.choice([2, 3, 40, 66, 130, 300])), rng.choice([0, 8]))
    got, want = decode_both(batch, len(batch.records), oracle.encode_records(batch), rng.choice([0, 64]))
    assert want is not None
    assert got == want


def test_like_records_cut_at_every_byte(rng: random.Random) -> None:
    batch = batch_of([Record(10 + i, 1000 + i, b"key", rng.randbytes(9), []) for i in range(20)])
    plain = oracle.encode_records(batch)
    for cut in range(len(plain)):
        error, want = decode_both(batch, 20, plain[:cut])
        assert (want, error in ("SEG_E_FEW", "SEG_E_RECORD", "SEG_E_VARINT")) == (None, True), f"cut at {cut}"


@pytest.mark.parametrize("key", [None, b"key"])
def test_each_byte_of_a_record_among_like_ones_changed(key: bytes | None, rng: random.Random) -> None:
    """Whatever a changed byte makes of a record, it is not taken for one like the last."""
    records = [Record(10 + i, 1000 + 99 * i, key, rng.randbytes(9), []) for i in range(12)]
    batch, size = batch_of(records), len(oracle.encode_records(batch_of(records[:2]))) // 2
    plain = oracle.encode_records(batch)
    for at in range(6 * size, 8 * size):
        for byte in (0, 1, 2, 3, 0x7F, 0x80, 0xFF, plain[at] ^ 1, plain[at] ^ 0x80):
            changed = plain[:at] + bytes([byte]) + plain[at + 1 :]
            got, want = decode_both(batch, 12, changed)
            assert got == want if want is not None else isinstance(got, str), f"byte {at} became {byte}"


def test_a_record_like_the_last_at_a_lower_offset_is_refused() -> None:
    records = [Record(10 + i, 1000, None, b"v" * 30, []) for i in range(200)]
    for at, offset in ((5, 14), (150, 10), (199, 150), (100, 11 + 100)):
        wrong = [*records[:at], records[at]._replace(offset=offset), *records[at + 1 :]]
        plain = oracle.encode_records(batch_of(wrong))
        assert decode_both(batch_of(records), 200, plain) == ("SEG_E_RECORD", None)


@pytest.mark.parametrize("missing", range(7))
def test_columns_of_like_records_that_are_not_wanted(missing: int) -> None:
    batch = batch_of([Record(10 + i, 1000 + i, b"key", b"v" * 30, []) for i in range(100)])
    plain = oracle.encode_records(batch)
    all_rows, some = np.full((7, 100), -7, np.int64), np.full((7, 100), -7, np.int64)
    for rows, out in ((all_rows, None), (some, missing)):
        columns = [ffi.NULL if i == out else held("int64_t *", row) for i, row in enumerate(rows)]
        fixed = native.exact(plain), len(plain), held("seg_batch *", native.as_batch(batch, 100))
        size = native.int64s([0]), native.int64s([len(plain)])
        assert lib.seg_decode(*fixed, *size, 1, 100, *columns, ffi.new("seg_decoded *")) == 100
    assert (some[missing] == -7).all()
    kept = [i for i in range(7) if i != missing]
    assert (some[kept] == all_rows[kept]).all()


@pytest.mark.parametrize("name", SPANS)
def test_decode_refuses_a_span_outside_the_arena(name: str) -> None:
    at, size = SPANS[name]
    with pytest.raises(NativeError, match="SEG_E_COLUMN"):
        native.decode(PLAIN, native.as_batch(TEN, 1), [at], [size])


def decode_raw(rows: np.ndarray, capacity: int, columns: list[Any], out: Any) -> int:
    at, size = native.int64s([0] * len(rows)), native.int64s([len(PLAIN)] * len(rows))
    pointer = held("seg_batch *", rows)
    return lib.seg_decode(
        native.exact(PLAIN), len(PLAIN), pointer, at, size, len(rows), capacity, *columns, out
    )


def test_decode_says_where_it_failed_and_never_writes_beyond_its_capacity() -> None:
    out, columns = ffi.new("seg_decoded *"), [ffi.new("int64_t[1]") for _ in range(7)]
    two = np.concatenate([native.as_batch(TEN, 1)] * 2)
    assert NAMES[decode_raw(two, 1, columns, out)] == "SEG_E_ROOM"
    assert (out.records, out.fault_batch, out.fault_record) == (1, 1, 0)
    two["count"][1] = 2
    assert NAMES[decode_raw(two, 3, [ffi.NULL] * 7, out)] == "SEG_E_FEW"
    assert (out.records, out.fault_batch, out.fault_record, out.fault_at) == (2, 1, 1, len(PLAIN))


@pytest.mark.parametrize("missing", range(7))
def test_columns_that_are_not_wanted(missing: int) -> None:
    out, columns = ffi.new("seg_decoded *"), [ffi.new("int64_t[]", [-7]) for _ in range(7)]
    wanted = [ffi.NULL if i == missing else column for i, column in enumerate(columns)]
    assert decode_raw(native.as_batch(TEN, 1), 1, wanted, out) == 1
    assert [column[0] for column in columns] == [
        -7 if i == missing else value for i, value in enumerate([100, 0, 5, -1, 6, -1, 6])
    ]


BAD_HEADERS = {
    "at negative": (b"\0", [-1], 0, "SEG_E_COLUMN"),
    "at the end": (b"\0", [1], 0, "SEG_E_COLUMN"),
    "count cut": (b"\x80", [0], 0, "SEG_E_RECORD"),
    "count of six bytes": (b"\x80" * 5 + b"\0", [0], 0, "SEG_E_VARINT"),
    "count negative": (V(-1), [0], 0, "SEG_E_RECORD"),
    "count beyond the bytes": (V(2) + V(0) + V(0), [0], 9, "SEG_E_RECORD"),
    "no name": (V(1) + V(-1) + V(0), [0], 9, "SEG_E_RECORD"),
    "value beyond the arena": (V(1) + V(0) + V(1), [0], 9, "SEG_E_RECORD"),
    "no room": (V(1) + V(0) + V(0), [0, 0], 1, "SEG_E_ROOM"),
}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_headers_refuse(name: str) -> None:
    arena, at, capacity, error = BAD_HEADERS[name]
    columns = [ffi.new("int64_t[]", max(capacity, 1)) for _ in range(4)]
    counts = ffi.new("int64_t[]", len(at))
    n = lib.seg_headers(
        native.exact(arena), len(arena), native.int64s(at), len(at), capacity, counts, *columns
    )
    assert NAMES[n] == error


# --- gather ---


def test_the_extent_of_a_column(rng: random.Random) -> None:
    """Its bytes, and how many of its elements are null."""
    nulls = ffi.new("int64_t *", 99)
    for n in range(40):
        lens = [rng.choice([-1, 0, 1, 100, 1 << 31]) for _ in range(n)]
        assert lib.seg_extent(native.int64s(lens), n, nulls) == sum(size for size in lens if size > 0)
        assert nulls[0] == lens.count(-1)


def gather(arena: bytes, at: list[int], lens: list[int], wide: int, capacity: int) -> tuple[bytes, list[int]]:
    out, n = ffi.new("uint8_t[]", capacity), len(at)
    offsets = ffi.new("int64_t[]" if wide else "int32_t[]", n + 1)
    where = (native.exact(arena), len(arena), native.int64s(at), native.int64s(lens), n)
    size = native.checked(lib.seg_gather(*where, wide, out, capacity, offsets))
    return bytes(ffi.buffer(out, size)), list(offsets)


@pytest.mark.parametrize("wide", [0, 1])
def test_gather_copies_slices(wide: int, rng: random.Random) -> None:
    arena = rng.randbytes(2000)
    lens = [rng.choice([-1, 0, 1, 31, 32, 33, 100, 700]) for _ in range(60)]
    at = [rng.randint(0, len(arena) - max(size, 0)) for size in lens]
    parts = [arena[a : a + max(size, 0)] for a, size in zip(at, lens, strict=True)]
    want = b"".join(parts)
    assert gather(arena, at, lens, wide, len(want)) == (
        want,
        [0, *np.cumsum([len(p) for p in parts]).tolist()],
    )
    with pytest.raises(NativeError, match="SEG_E_ROOM"):
        gather(arena, at, lens, wide, len(want) - 1)


@pytest.mark.parametrize(
    ("at", "size"), [(-1, 1), (0, 11), (10, 1), (11, 1), (1, INT63), (INT63, 1), (0, -2)]
)
def test_gather_refuses_slices_outside(at: int, size: int) -> None:
    with pytest.raises(NativeError, match="SEG_E_COLUMN"):
        gather(b"0123456789", [at], [size], 1, 100)
