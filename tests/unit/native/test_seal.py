"""seg_seal and seg_assign: headers of batches whose records are in place."""

from __future__ import annotations

import struct
from collections.abc import Callable

import native_batches as native
import numpy as np
import oracle
import pytest
from native_batches import (
    INT31,
    INT63,
    NAMES,
    Input,
    template,
)
from oracle import Batch, Record

from segstore._native import ffi, lib
from segstore.records.header import HEADER_SIZE


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_records_of_a_codec_stay_plain_until_they_are_sealed(codec: int) -> None:
    some = [Record(i, i, b"k", b"v", []) for i in range(3)]
    data, rows, _ = Input(some).encode(template(attributes=codec))
    assert (rows["crc"][0], data[17:21]) == (0, bytes(4))
    batch = native.exact(data)
    assert lib.seg_seal(batch, len(data), ffi.from_buffer("seg_batch *", rows)) >= 0
    header, count, payload, _ = oracle.split_batch(bytes(ffi.buffer(batch)))
    assert oracle.decode_records(header, count, payload) == some
    assert struct.unpack(">I", bytes(ffi.buffer(batch))[17:21])[0] == rows["crc"][0]


def three_batches() -> tuple[bytes, np.ndarray]:
    some = [Record(i * 3, 1000 - i, b"k", b"v%d" % i, []) for i in range(9)]
    data, rows, _ = Input(some).encode(template(attributes=0x10), batch_bytes=HEADER_SIZE + 3 * 12)
    assert len(rows) == 3
    return data, rows.copy()


def assign(data: bytes, rows: np.ndarray, base: int, stamp: int = -1) -> tuple[int, bytes]:
    buffer = native.exact(data)
    n = lib.seg_assign(
        buffer, len(data), ffi.from_buffer("seg_batch *", rows), len(rows), base, 6, stamp, 500
    )
    return n, bytes(ffi.buffer(buffer))


@pytest.mark.parametrize("stamp", [-1, 0, 1_700_000_000_000])
def test_assign_moves_batches(stamp: int) -> None:
    data, rows = three_batches()
    before = oracle.decode_batches(data)
    next_offset, moved = assign(data, rows, 1 << 40, stamp)
    after = oracle.decode_batches(moved)
    assert next_offset == rows["last_offset"][-1] + 1 == (1 << 40) + 3 * 7
    assert rows["position"].tolist() == [500 + at for at in np.cumsum([0, *rows["size"][:-1]])]
    for old, new, row in zip(before, after, rows, strict=True):
        assert (new.leader_epoch, new.base_offset) == (6, row["base_offset"])
        assert [(r.key, r.value) for r in new.records] == [(r.key, r.value) for r in old.records]
        assert new.attributes == row["attributes"] == (0x10 if stamp < 0 else 0x18)
        assert {r.timestamp for r in new.records} == (
            {r.timestamp for r in old.records} if stamp < 0 else {stamp}
        )
        assert row["max_timestamp"] == new.max_timestamp
    again, _ = native.scan(moved, position=500)
    assert (again == rows).all()


def other(name: str, value: int) -> Callable[[np.ndarray], None]:
    def change(rows: np.ndarray) -> None:
        rows[name][2] = value

    return change


UNLIKE = {
    "size": other("size", 62),
    "size below a header": other("size", 60),
    "size beyond the bytes": other("size", INT31),
    "count": other("count", 1),
    "offset range": other("last_offset", 1000),
    "offset range negative": other("last_offset", 0),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_assign_refuses_what_is_unlike_the_bytes_and_changes_nothing(name: str) -> None:
    data, rows = three_batches()
    UNLIKE[name](rows)
    kept = rows.copy()
    assert assign(data, rows, 10, 5) == (lib.SEG_E_COLUMN, data)
    assert (rows == kept).all()


@pytest.mark.parametrize("base", [-1, INT63 - 20, INT63])
def test_assign_refuses_offsets_beyond_int64(base: int) -> None:
    data, rows = three_batches()
    assert assign(data, rows, base) == (lib.SEG_E_COLUMN, data)
    assert assign(data, rows, INT63 - 21)[0] == INT63


SEAL_REFUSED = {
    "longer than the buffer": ("size", 1000, "SEG_E_ROOM"),
    "shorter than a header": ("size", 60, "SEG_E_ROOM"),
    "last offset below the base": ("last_offset", -1, "SEG_E_COLUMN"),
    "offset delta beyond int32": ("last_offset", 1 << 31, "SEG_E_COLUMN"),
    "more records than offsets": ("count", 2, "SEG_E_COLUMN"),
}


@pytest.mark.parametrize("name", SEAL_REFUSED)
def test_seal_refuses(name: str) -> None:
    column, value, error = SEAL_REFUSED[name]
    row = native.as_batch(Batch(), 1, 70)
    row[column] = value
    assert NAMES[lib.seg_seal(ffi.new("uint8_t[70]"), 70, ffi.from_buffer("seg_batch *", row))] == error
