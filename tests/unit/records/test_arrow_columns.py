"""Promise: headers are encoded from every kind of Arrow column as from lists; a column whose numbers are
wrong is refused with its name and record, and no memory outside of it is read.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from segstore.errors import InvalidArgumentError, InvalidTypeError
from segstore.records import Columns, check_sizes, encode
from segstore.records.arrow import HEADER_TYPE

PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
TEXT = pa.struct([("key", pa.large_string()), ("value", pa.string())])
TURNED = pa.struct([("value", pa.binary()), ("key", pa.string())])
SHORT: list[Any] = [
    [("h", b"1"), ("h", None), ("é", b"")],
    None,
    [],
    [("", b"2" * 50)],
    [("a key of more than twelve bytes", b"\xff"), ("h", b"1")],
    None,
]


def encoded(headers: Any, n: int) -> bytes:
    columns = Columns([b"v%d" % i for i in range(n)], headers=headers, timestamp=5)
    check_sizes(columns)
    return b"".join(bytes(each.data) for each in encode(columns, batch_bytes=400))


def by_polars(lists: list[Any]) -> Any:
    rows = [None if each is None else [{"key": k, "value": v} for k, v in each] for each in lists]
    return pl.Series("headers", rows, pl.List(pl.Struct({"key": pl.String, "value": pl.Binary})))


def sliced(lists: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array([[("before", b"x" * 99)], None, *lists, [("behind", b"y")]], kind)[2:-1]


def in_chunks(lists: list[Any], kind: pa.DataType) -> pa.ChunkedArray:
    whole = pa.array(lists, kind)
    return pa.chunked_array([whole[:0], whole[:1], whole[1:4], whole[4:]])


def null_lists_with_items(lists: list[Any]) -> pa.Array:
    """Lists of which those that are null have items all the same, as Arrow allows."""
    full = pa.array([[("lost", b"x")] if each is None else each for each in lists], HEADER_TYPE)
    validity = pa.py_buffer(np.packbits([each is not None for each in lists], bitorder="little").tobytes())
    return pa.Array.from_buffers(full.type, len(full), [validity, full.buffers()[1]], children=[full.values])


def turned_views(lists: list[Any]) -> pa.Array:
    """A list view whose lists lie in memory from the last to the first."""
    back = pa.array(lists[::-1], pa.list_view(PAIR))
    offsets, sizes = (np.asarray(each)[::-1].copy() for each in (back.offsets, back.sizes))
    nulls = pa.array([each is None for each in lists])
    return pa.ListViewArray.from_arrays(pa.array(offsets), pa.array(sizes), back.values, mask=nulls)


def dictionary(lists: list[Any]) -> pa.Array:
    plain = pa.array(lists, pa.list_(PAIR))
    pairs = pa.StructArray.from_arrays(
        [plain.values.field(0).dictionary_encode(), plain.values.field(1)], ["key", "value"]
    )
    return pa.ListArray.from_arrays(plain.offsets, pairs, mask=plain.is_null())


KINDS: dict[str, Callable[[list[Any]], Any]] = {
    "list": lambda lists: pa.array(lists, pa.list_(PAIR)),
    "as to_arrow has it": lambda lists: pa.array(lists, HEADER_TYPE),
    "large list": lambda lists: pa.array(lists, pa.large_list(PAIR)),
    "list view": lambda lists: pa.array(lists, pa.list_view(PAIR)),
    "large list view": lambda lists: pa.array(lists, pa.large_list_view(PAIR)),
    "list views from the last to the first": turned_views,
    "map": lambda lists: pa.array(lists, pa.map_(pa.string(), pa.binary())),
    "value before key": lambda lists: pa.array(lists, pa.list_(PAIR)).cast(pa.list_(TURNED)),
    "views of bytes": lambda lists: pa.array(
        lists, pa.list_(pa.struct([("key", pa.string_view()), ("value", pa.binary_view())]))
    ),
    "keys of a dictionary": dictionary,
    "polars": by_polars,
    "a slice": lambda lists: sliced(lists, pa.list_(PAIR)),
    "a slice of large lists": lambda lists: sliced(lists, pa.large_list(PAIR)),
    "a slice of list views": lambda lists: sliced(lists, pa.list_view(PAIR)),
    "a slice of maps": lambda lists: sliced(lists, pa.map_(pa.string(), pa.binary())),
    "chunks": lambda lists: in_chunks(lists, pa.list_(PAIR)),
    "chunks of list views": lambda lists: in_chunks(lists, pa.list_view(PAIR)),
    "chunks of maps": lambda lists: in_chunks(lists, pa.map_(pa.string(), pa.binary())),
    "items of null lists": null_lists_with_items,
}


@pytest.mark.parametrize("name", KINDS)
def test_headers_of_every_kind(name: str) -> None:
    assert encoded(KINDS[name](SHORT), len(SHORT)) == encoded(SHORT, len(SHORT))


def test_values_that_are_text() -> None:
    lists = [[("a", "x"), ("b", None)], None]
    want = [[("a", b"x"), ("b", None)], None]
    assert encoded(pa.array(lists, pa.list_(TEXT)), 2) == encoded(want, 2)


EMPTY: dict[str, Any] = {
    "null": pa.nulls(3),
    "all lists are null": pa.nulls(3, HEADER_TYPE),
    "all lists are empty": pa.array([[], [], []], HEADER_TYPE),
    "lists of null": pa.array([[], None, []], pa.list_(pa.null())),
    "values are null": pa.array(
        [[], None, []], pa.list_(pa.struct([("key", pa.null()), ("value", pa.null())]))
    ),
}


@pytest.mark.parametrize("name", EMPTY)
def test_no_headers(name: str) -> None:
    assert encoded(EMPTY[name], 3) == encoded(None, 3)
    assert Columns([b"v"] * 3, headers=EMPTY[name]).headers is None


@pytest.mark.parametrize("headers", [pa.nulls(2), pa.array([[("a", b"")]] * 4, HEADER_TYPE)])
def test_one_for_each_record(headers: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{len(headers)} headers for 3 values"):
        Columns([b"v"] * 3, headers=headers)


def drawn(rng: random.Random) -> list[Any]:
    def pair() -> tuple[str, bytes | None]:
        return rng.choice(["", "h", "é", "k" * 20]), rng.choice([None, b"", b"v", rng.randbytes(30)])

    return [
        rng.choice([None, [], [pair() for _ in range(rng.randrange(4))]]) for _ in range(rng.randrange(6, 60))
    ]


@pytest.mark.parametrize("seed", range(12))
def test_drawn_headers(seed: int) -> None:
    lists = drawn(random.Random(seed))
    for name, make in KINDS.items():
        assert encoded(make(lists), len(lists)) == encoded(lists, len(lists)), f"seed {seed}, {name}"


def test_no_object_is_made_for_a_header() -> None:
    headers = pa.array([[("a", b"1"), ("b", b"2")]] * 10_000, HEADER_TYPE)
    calls = 0

    def count(_frame: Any, event: str, _of: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        columns = Columns(pa.array([b"v"] * 10_000), headers=headers)
    finally:
        sys.setprofile(None)
    assert columns.headers is not None
    assert calls < 1000


# --- refused -----------------------------------------------------------------------------------


def pairs_of(keys: pa.Array, values: pa.Array, offsets: list[int], mask: Any = None) -> pa.Array:
    pairs = pa.StructArray.from_arrays([keys, values], ["key", "value"], mask=mask)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pairs)


TWO = pa.array([b"x", b"y"])
NAMED, NO_KEY = pa.list_(PAIR), pa.array([None], pa.string())
WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no list": (
        lambda: pa.array([b"a", b"b"]),
        InvalidTypeError,
        "headers is of Arrow type binary: allowed are",
    ),
    "lists of bytes": (lambda: pa.array([[b"a"], []]), InvalidTypeError, "list<item: binary>"),
    "other names": (
        lambda: pa.array([[{"name": "a", "value": b"1"}], []]),
        InvalidTypeError,
        "allowed are lists of struct<key: string, value: binary>",
    ),
    "a third field": (
        lambda: pa.array([[{"key": "a", "value": b"", "x": 1}], []]),
        InvalidTypeError,
        "x: int64",
    ),
    "keys are bytes": (
        lambda: pa.array([[{"key": b"a", "value": b"1"}], []]),
        InvalidTypeError,
        "key: binary",
    ),
    "values are numbers": (
        lambda: pa.array([[{"key": "a", "value": 1}], []]),
        InvalidTypeError,
        "value: int64",
    ),
    "a map of numbers": (
        lambda: pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int8())),
        InvalidTypeError,
        "map<string, int8>",
    ),
    "a null key": (
        lambda: pairs_of(pa.array(["a", None]), TWO, [0, 0, 2]),
        InvalidArgumentError,
        r"headers\[1\]\[1\] has a null key",
    ),
    "keys of type null": (
        lambda: pairs_of(pa.nulls(2), TWO, [0, 1, 2]),
        InvalidArgumentError,
        r"headers\[0\]\[0\] has a null key",
    ),
    "a null pair": (
        lambda: pairs_of(pa.array(["a", "b"]), TWO, [0, 1, 2], pa.array([False, True])),
        InvalidArgumentError,
        r"headers\[1\]\[0\] is null",
    ),
    "a null pair of no type": (
        lambda: pa.array([[], [None]], pa.list_(pa.null())),
        InvalidArgumentError,
        r"headers\[1\]\[0\] is null",
    ),
    "a null key in the second chunk": (
        lambda: pa.chunked_array([pa.array([[]], NAMED), pairs_of(NO_KEY, TWO[:1], [0, 1])]),
        InvalidArgumentError,
        r"headers\[1\]\[0\] has a null key",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_headers(name: str) -> None:
    make, error, match = WRONG[name]
    headers = make()
    with pytest.raises(error, match=match):
        encoded(headers, len(headers))


def test_a_null_key_of_no_record_is_not_looked_at() -> None:
    keys = pa.array([None, "a", None])
    column = pairs_of(keys, pa.array([b"", b"1", b""]), [0, 1, 2, 3])[1:2]
    assert encoded(column, 1) == encoded([[("a", b"1")]], 1)


def int32s(*values: int) -> pa.Buffer:
    return pa.py_buffer(np.array(values, np.int32))


def names(*offsets: int) -> pa.Array:
    buffers = [None, int32s(*offsets), pa.py_buffer(b"abcd")]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


def lists_of(keys: pa.Array, values: pa.Array, n: int, *offsets: int) -> pa.Array:
    pairs = pa.Array.from_buffers(PAIR, len(keys), [None], children=[keys, values])
    return pa.Array.from_buffers(pa.list_(PAIR), n, [None, int32s(*offsets)], children=[pairs])


GOOD = names(0, 2, 4)
HOSTILE: dict[str, Callable[[], Any]] = {
    "lists fall": lambda: lists_of(GOOD, TWO, 2, 0, 2, 1),
    "lists are negative": lambda: lists_of(GOOD, TWO, 2, -1, 1, 2),
    "a list in the middle is beyond": lambda: lists_of(GOOD, TWO, 2, 0, 5, 2),
    "the last list is beyond": lambda: lists_of(GOOD, TWO, 2, 0, 1, 3),
    "fewer offsets than lists": lambda: lists_of(GOOD, TWO, 2, 0, 1),
    "offsets beyond int31": lambda: lists_of(GOOD, TWO, 2, 0, 2**31 - 1, 2),
    "keys fall": lambda: lists_of(names(0, 3, 2), TWO, 2, 0, 1, 2),
    "keys are negative": lambda: lists_of(names(-2, 1, 2), TWO, 2, 0, 1, 2),
    "a key in the middle is beyond": lambda: lists_of(names(0, 9, 4), TWO, 2, 0, 1, 2),
    "the last key is beyond": lambda: lists_of(names(0, 1, 9), TWO, 2, 0, 1, 2),
    "fewer values than keys": lambda: lists_of(GOOD, TWO[:1], 2, 0, 1, 2),
}


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers(name: str, chunks: int) -> None:
    try:
        column = HOSTILE[name]()
    except (pa.ArrowInvalid, ValueError):
        return  # pyarrow itself has refused it
    with pytest.raises(InvalidArgumentError):
        encoded(pa.chunked_array([column] * chunks), 2 * chunks)


@pytest.mark.parametrize("seed", range(15))
def test_drawn_hostile_columns(seed: int) -> None:
    """Numbers of any kind in the buffers of headers and values, as one chunk and as two: they are encoded, or
    refused.
    """
    rng = random.Random(seed)
    refused = 0
    for _ in range(150):
        near = rng.choice([3, 5, 2**31 - 1])
        offsets = sorted(rng.randrange(3) for _ in range(3))
        offsets[rng.randrange(3)] = rng.randrange(-near, near)
        lens = [0, *sorted(rng.randrange(5) for _ in range(2))]
        lens[rng.randrange(3)] = rng.randrange(-near, near)
        try:
            column = lists_of(names(*lens), TWO, 2, *offsets)
            keys = names(*lens).cast(pa.binary()) if rng.random() < 0.1 else names(*lens)
            for many in (column, pa.chunked_array([column, column])):
                n = len(many)
                for each in encode(Columns(pa.chunked_array([keys] * (n // 2)), headers=many)):
                    each.release()
        except (pa.ArrowInvalid, ValueError, InvalidArgumentError):
            refused += 1
    assert refused > 50, seed


HOSTILE_VIEWS = {
    "length negative": (0, -1),
    "length beyond": (0, 50),
    "length of int32": (0, 2**31 - 1),
    "buffer negative": (2, -1),
    "buffer beyond": (2, 1),
    "offset negative": (3, -1),
    "offset beyond": (3, 30),
    "offset of int32": (3, 2**31 - 1),
}


@pytest.mark.parametrize("name", HOSTILE_VIEWS)
def test_hostile_views(name: str) -> None:
    at, number = HOSTILE_VIEWS[name]
    good = pa.array([b"more than twelve bytes", b"and these are others"], pa.binary_view())
    _, views, data = good.buffers()
    changed = np.frombuffer(views, np.int32).copy()
    changed[4 + at] = number
    wrong = pa.Array.from_buffers(pa.binary_view(), 2, [None, pa.py_buffer(changed), data])
    with pytest.raises(InvalidArgumentError, match=r"values(\[1\] lies outside| is no valid)"):
        Columns(wrong)
