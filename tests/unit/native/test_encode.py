"""seg_encode and seg_largest: how much they take, and columns that they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
import pytest
from native_batches import (
    INT31,
    INT63,
    HeaderColumns,
    Input,
    NativeError,
    template,
)
from oracle import Record

from segstore._native import ffi
from segstore.records.header import HEADER_SIZE


def test_offsets_are_contiguous_where_none_are_given() -> None:
    columns = Input([Record(0, 5, None, b"x", [])] * 5)
    columns.offsets = None
    data, rows, _ = columns.encode(template(base_offset=100), batch_bytes=80)
    assert [r.offset for b in oracle.decode_batches(data) for r in b.records] == [100, 101, 102, 103, 104]
    assert len(rows) > 1
    assert rows["position"].tolist() == np.cumsum([0, *rows["size"][:-1]]).tolist()


def test_batches_are_as_full_as_batch_bytes_allows() -> None:
    """64 records of 8 bytes with offset deltas of one byte, 3 more bytes each beyond."""
    columns = Input([Record(i, 0, None, b"x", []) for i in range(1000)])
    _, rows, taken = columns.encode(batch_bytes=HEADER_SIZE + 8 * 10)
    assert taken == 1000
    assert rows["count"].tolist() == [10] * 100


def test_whole_batches_only_as_many_as_fit() -> None:
    columns = Input([Record(i, 0, None, b"x" * 10, []) for i in range(100)])
    one = HEADER_SIZE + 17 * 10
    for capacity, most, want in ((3 * one, 99, 3), (3 * one - 1, 99, 2), (1 << 18, 4, 4)):
        _, rows, taken = columns.encode(batch_bytes=one, capacity=capacity, max_batches=most)
        assert (len(rows), taken) == (want, 10 * want)


# --- refused ---


def values_of(**changes: Any) -> Input:
    columns = Input([Record(i, 0, None, b"abc", []) for i in range(3)])
    for name, value in changes.items():
        setattr(columns.values.c, name, value)
    return columns


def offsets_of(*ends: int, kind: str = "offsets64") -> Input:
    columns = Input([Record(i, 0, None, b"abc", []) for i in range(3)], values=kind)
    for i, end in enumerate(ends):
        columns.values.offsets[i] = end
    return columns


def with_headers(change: Callable[[HeaderColumns], None]) -> Input:
    columns = Input([Record(0, 0, None, None, [(b"a", b"b")]), Record(1, 0, None, None, [(b"c", None)])])
    assert columns.headers
    change(columns.headers)
    return columns


def nameless() -> Input:
    return Input([Record(0, 0, None, None, [(None, b"b")])])  # type: ignore[list-item]


def with_offsets(*offsets: int) -> Input:
    columns = values_of()
    columns.offsets = list(offsets)
    return columns


def set_header_offset(i: int, value: int) -> Callable[[HeaderColumns], None]:
    return lambda headers: headers.offsets.__setitem__(i, value)


def few_values(headers: HeaderColumns) -> None:
    headers.c.values.n = 1


BAD_COLUMNS = {
    "offsets fall": (lambda: offsets_of(0, 6, 3), "SEG_E_COLUMN"),
    "offsets fall, 32 bits": (lambda: offsets_of(0, 6, 3, kind="offsets32"), "SEG_E_COLUMN"),
    "offsets negative": (lambda: offsets_of(-1), "SEG_E_COLUMN"),
    "offsets beyond the data": (lambda: offsets_of(0, 3, 6, 10), "SEG_E_COLUMN"),
    "offsets near 2^63": (lambda: offsets_of(0, 3, 6, INT63), "SEG_E_COLUMN"),
    "no offsets": (lambda: values_of(offsets=ffi.NULL), "SEG_E_COLUMN"),
    "fewer values than records": (lambda: values_of(n=2), "SEG_E_COLUMN"),
    "data length negative": (lambda: values_of(data_len=-1), "SEG_E_COLUMN"),
    "kind unknown": (lambda: values_of(kind=5), "SEG_E_COLUMN"),
    "kind negative": (lambda: values_of(kind=-1), "SEG_E_COLUMN"),
    "width negative": (lambda: values_of(kind=3, width=-1), "SEG_E_COLUMN"),
    "width beyond the data": (lambda: values_of(kind=3, width=4), "SEG_E_COLUMN"),
    "width near 2^63": (lambda: values_of(kind=3, width=INT63), "SEG_E_COLUMN"),
    "header without a name": (nameless, "SEG_E_NULL"),
    "header offsets fall": (lambda: with_headers(set_header_offset(1, -1)), "SEG_E_COLUMN"),
    "header offsets beyond": (lambda: with_headers(set_header_offset(2, 3)), "SEG_E_COLUMN"),
    "header offsets near 2^63": (lambda: with_headers(set_header_offset(2, INT63)), "SEG_E_COLUMN"),
    "fewer header values than names": (lambda: with_headers(few_values), "SEG_E_COLUMN"),
}
BAD_OFFSETS = {
    "same": (5, 5, 6),
    "falling": (5, 6, 4),
    "negative": (-1, 0, 1),
    "the last of int64": (0, 1, INT63),
}


@pytest.mark.parametrize("name", BAD_COLUMNS)
def test_encode_refuses_columns(name: str) -> None:
    make, error = BAD_COLUMNS[name]
    for call in (Input.encode, Input.largest):
        with pytest.raises(NativeError, match=error):
            call(make())


@pytest.mark.parametrize("name", BAD_OFFSETS)
def test_encode_refuses_offsets(name: str) -> None:
    with pytest.raises(NativeError, match="SEG_E_COLUMN"):
        with_offsets(*BAD_OFFSETS[name]).encode()


@pytest.mark.parametrize("base", [-1, INT63, INT63 - 2])
def test_encode_refuses_a_base_offset(base: int) -> None:
    columns = values_of()
    columns.offsets = None
    with pytest.raises(NativeError, match="SEG_E_COLUMN"):
        columns.encode(template(base_offset=base))
    assert columns.encode(template(base_offset=INT63 - 3))[1]["last_offset"].tolist() == [INT63 - 1]


@pytest.mark.parametrize(("first", "capacity", "most"), [(0, 71, 9), (0, 60, 9), (0, 0, 9), (0, 999, 0)])
def test_encode_needs_room_for_one_batch(first: int, capacity: int, most: int) -> None:
    columns = Input([Record(0, 0, None, b"abcd", [])])
    size = HEADER_SIZE + 11
    assert len(columns.encode(capacity=size)[0]) == size
    with pytest.raises(NativeError, match="SEG_E_ROOM"):
        columns.encode(first=first, capacity=capacity, max_batches=most)


@pytest.mark.parametrize("first", [-1, 4])
def test_encode_refuses_a_range_outside(first: int) -> None:
    with pytest.raises(NativeError, match="SEG_E_COLUMN"):
        values_of().encode(first=first)


def test_nothing_to_encode() -> None:
    assert values_of().encode(first=3, capacity=0)[0] == b""


@pytest.mark.parametrize("size", [INT31 - 60, INT31, 1 << 40])
def test_a_record_beyond_int32_is_refused_unread(size: int) -> None:
    """The column claims more bytes than are there: nothing may touch them."""
    columns = Input([Record(0, 0, None, b"abc", [])])
    columns.values.c.data_len = columns.values.offsets[1] = size
    with pytest.raises(NativeError, match="SEG_E_TOO_LARGE"):
        columns.encode()
    assert columns.largest()[0] > INT31 - HEADER_SIZE
