"""Columns: every kind of input gives the elements that its own library shows, or an error that names one."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from segstore._native import ffi
from segstore.errors import InvalidArgumentError, InvalidTypeError
from segstore.records.column import Column
from segstore.records.columns import Columns, as_column, as_headers, as_timestamps


def elements(column: Column) -> list[bytes | None]:
    """What C would read, in Python."""
    c = column.c
    assert c.n == column.n
    if c.kind == 4:
        found = ffi.cast("seg_span *", c.offsets)
        return [None if (s := found[i]).len < 0 else bytes(ffi.buffer(s.data, s.len)) for i in range(c.n)]
    data = bytes(ffi.buffer(c.data, c.data_len)) if c.data_len else b""
    widths = {1: "int32_t *", 2: "int64_t *"}
    if c.kind == 0:
        return [None] * c.n
    if c.kind == 3:
        spans = [(i * c.width, (i + 1) * c.width) for i in range(c.n)]
    else:
        offsets = ffi.cast(widths[c.kind], c.offsets)
        spans = [(offsets[i], offsets[i + 1]) for i in range(c.n)]
    assert all(0 <= start <= end <= len(data) for start, end in spans)
    return [data[start:end] if _present(c, i) else None for i, (start, end) in enumerate(spans)]


def _present(c: Any, i: int) -> bool:
    if c.validity == ffi.NULL:
        return True
    bit = c.validity_bit + i
    return bool(c.validity[bit // 8] >> bit % 8 & 1)


MIXED = [b"a", b"", None, b"ccc", None]
ARROW = pa.array(MIXED, pa.binary())
UTF8 = ["a", "", None, "ö"]


class Stream:
    """Whatever exports Arrow's C stream interface."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.chunked_array([ARROW, ARROW]).__arrow_c_stream__(requested_schema)


class Words(bytes):
    """A subclass of bytes."""


GOOD: dict[str, tuple[Callable[[], Any], list[bytes | None]]] = {
    "list": (lambda: [b"a", b"", b"ccc"], [b"a", b"", b"ccc"]),
    "list with nulls": (lambda: MIXED, MIXED),
    "list of nulls": (lambda: [None, None], [None, None]),
    "empty list": (list, []),
    "tuple": (lambda: (b"a", b"b"), [b"a", b"b"]),
    "generator": (lambda: (x for x in (b"a", b"b")), [b"a", b"b"]),
    "bytearray": (lambda: [bytearray(b"ab"), b"c"], [b"ab", b"c"]),
    "subclass": (lambda: [Words(b"ab")], [b"ab"]),
    "memoryview": (lambda: [memoryview(b"abc")[::2], None], [b"ac", None]),
    "memoryview of int32": (lambda: [memoryview(np.array([1, 2], "<i4"))], [b"\1\0\0\0\2\0\0\0"]),
    "nine nulls and one": (lambda: [None] * 9 + [b"x"], [None] * 9 + [b"x"]),
    "S": (lambda: np.array([b"ab", b"cd"]), [b"ab", b"cd"]),
    "S with padding": (lambda: np.array([b"ab", b"c", b"", b"d\0e"], "S4"), [b"ab", b"c", b"", b"d\0e"]),
    "S strided": (lambda: np.array([b"ab", b"xx", b"cd"])[::2], [b"ab", b"cd"]),
    "S empty": (lambda: np.empty(0, "S5"), []),
    "V": (lambda: np.array([b"ab", b"c\0"], "V2"), [b"ab", b"c\0"]),
    "V0": (lambda: np.empty(2, "V0"), [b"", b""]),
    "object": (lambda: np.array(MIXED, object), MIXED),
    "masked": (lambda: np.ma.array([b"a", b"b"], mask=[0, 1]), [b"a", None]),
    "uint8 2-D": (lambda: np.arange(6, dtype=np.uint8).reshape(2, 3), [b"\0\1\2", b"\3\4\5"]),
    "uint8 2-D strided": (lambda: np.arange(8, dtype=np.uint8).reshape(2, 4)[:, ::2], [b"\0\2", b"\4\6"]),
    "uint8 of no width": (lambda: np.empty((3, 0), np.uint8), [b"", b"", b""]),
    "arrow binary": (lambda: ARROW, MIXED),
    "arrow slice": (lambda: pa.array([b"z"] * 11 + MIXED, pa.binary())[11:], MIXED),
    "arrow slice before its end": (lambda: pa.array([*MIXED, b"z"], pa.binary())[1:4], MIXED[1:4]),
    "arrow large binary": (lambda: ARROW.cast(pa.large_binary())[1:], MIXED[1:]),
    "arrow string": (lambda: pa.array(UTF8), [b"a", b"", None, "ö".encode()]),
    "arrow large string": (lambda: pa.array(UTF8, pa.large_string()), [b"a", b"", None, "ö".encode()]),
    "arrow fixed": (lambda: pa.array([b"ab", None, b"cd"], pa.binary(2)), [b"ab", None, b"cd"]),
    "arrow fixed slice": (lambda: pa.array([b"ab", None, b"cd"], pa.binary(2))[1:], [None, b"cd"]),
    "arrow view": (lambda: pa.array([*MIXED, b"d" * 20], pa.binary_view()), [*MIXED, b"d" * 20]),
    "arrow string view": (lambda: pa.array(UTF8, pa.string_view())[1:], [b"", None, "ö".encode()]),
    "arrow null": (lambda: pa.nulls(2), [None, None]),
    "arrow dictionary of views": (
        lambda: pa.DictionaryArray.from_arrays([0, 1, None, 0], pa.array(["a", "é"], pa.string_view()))[1:],
        ["é".encode(), None, b"a"],
    ),
    "arrow dictionary": (lambda: ARROW.dictionary_encode(), MIXED),
    "arrow empty": (lambda: pa.array([], pa.binary()), []),
    "arrow all empty": (lambda: pa.array([b"", b""], pa.binary()), [b"", b""]),
    "arrow chunks": (lambda: pa.chunked_array([ARROW, ARROW[1:]]), MIXED + MIXED[1:]),
    "arrow no chunk": (lambda: pa.chunked_array([], pa.binary()), []),
    "arrow column of a table": (lambda: pa.table({"v": ARROW})["v"], MIXED),
    "c stream": (Stream, MIXED + MIXED),
}


@pytest.mark.parametrize(("make", "expected"), GOOD.values(), ids=GOOD)
def test_elements(make: Callable[[], Any], expected: list[bytes | None]) -> None:
    assert elements(as_column(make())) == expected


def test_an_arrow_column_is_not_copied() -> None:
    array = pa.array([b"abc"] * 10, pa.binary())
    assert int(ffi.cast("intptr_t", as_column(array).c.data)) == array.buffers()[2].address


def test_a_numpy_column_is_not_copied() -> None:
    array = np.array([b"abc"] * 10)
    assert int(ffi.cast("intptr_t", as_column(array).c.data)) == array.ctypes.data


def test_a_column_keeps_what_it_points_into() -> None:
    column = as_column(pa.array([b"abc%d" % i for i in range(1000)], pa.binary()))
    junk = [b"x" * 4000 for _ in range(100)]
    assert elements(column)[999] == b"abc999"
    assert len(junk) == 100


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "str": (lambda: [b"a", "b"], r"values\[1\] is str.*encode it"),
    "int": (lambda: [b"a", None, 3], r"values\[2\] is int: allowed is bytes"),
    "array": (lambda: [np.zeros(3)], r"values\[0\] is ndarray"),
    "str alone": (lambda: "abc", "values is str"),
    "bytes alone": (lambda: b"abc", "values is bytes"),
    "None": (lambda: None, "values is NoneType"),
    "number": (lambda: 5, "values is int"),
    "object array": (lambda: np.array([b"a", 1.5], object), r"values\[1\] is float"),
    "unicode array": (lambda: np.array(["a"]), "numpy array of <U1"),
    "int64 array": (lambda: np.arange(3), "numpy array of int64"),
    "bytes 2-D": (lambda: np.array([[b"a"]]), "2-dimensional"),
    "uint8 1-D": (lambda: np.zeros(3, np.uint8), "1-dimensional"),
    "arrow int": (lambda: pa.array([1]), "Arrow type int64"),
    "arrow list": (lambda: pa.array([[b"a"]]), "Arrow type list"),
    "arrow table of two": (lambda: pa.table({"a": [b"x"], "b": [b"y"]}), "values is .*Arrow"),
}


@pytest.mark.parametrize(("make", "match"), BAD.values(), ids=BAD)
def test_wrong_type(make: Callable[[], Any], match: str) -> None:
    with pytest.raises(InvalidTypeError, match=match):
        as_column(make())


def test_list_of_many_against_python(rng: random.Random) -> None:
    values = [rng.choice((None, b"", rng.randbytes(rng.randrange(300)))) for _ in range(3000)]
    assert elements(as_column(values)) == values


TIMES = {
    "ints": [0, 1, 1357034400000],
    "int32": np.array([5, 6], np.int32),
    "uint64": np.array([5, 6], np.uint64),
    "no timestamp": [-1, 5],
    "range": range(3),
    "strided": np.arange(10)[::3],
}


@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
def test_timestamps(times: Any) -> None:
    array = as_timestamps(times)
    assert array is not None
    assert array.dtype == np.int64
    assert array.flags.c_contiguous
    assert array.tolist() == list(times)


MOMENT = datetime.datetime(2013, 1, 1, 10, 0, 0, 123456)
MOMENT_MS = 1357034400123


@pytest.mark.parametrize(
    "times",
    [
        np.array([MOMENT], "datetime64[us]"),
        np.array([MOMENT], "datetime64[ms]"),
        pa.array([MOMENT], pa.timestamp("us")),
        pa.array([MOMENT], pa.timestamp("ns", "UTC")),
        pa.chunked_array([pa.array([MOMENT_MS])]),
    ],
    ids=["us", "ms", "arrow us", "arrow ns UTC", "arrow int"],
)
def test_moments(times: Any) -> None:
    array = as_timestamps(times)
    assert array is not None
    assert array.tolist() == [MOMENT_MS]


BAD_TIMES = {
    "negative": ([1, -2], InvalidArgumentError, r"timestamps\[1\] is negative: -2"),
    "NaT": (np.array(["2013-01-01", "NaT"], "M8[s]"), InvalidArgumentError, r"timestamps\[1\] is missing"),
    "above int64": (np.array([2**63], np.uint64), InvalidArgumentError, r"timestamps\[0\] is above"),
    "arrow null": (pa.array([1, None]), InvalidArgumentError, r"timestamps\[1\] is null"),
    "float": ([1.5], InvalidTypeError, "float64"),
    "bool": ([True], InvalidTypeError, "bool"),
    "str": (["now"], InvalidTypeError, "timestamps are <U3"),
    "datetime": ([MOMENT], InvalidTypeError, "object"),
    "huge int": ([2**70], InvalidTypeError, "object"),
    "2-D": (np.zeros((2, 2), np.int64), InvalidTypeError, "2-dimensional"),
    "one int": (5, InvalidTypeError, "timestamps is int"),
    "ragged": ([[1], [1, 2]], InvalidTypeError, "timestamps"),
}


@pytest.mark.parametrize(("times", "error", "match"), BAD_TIMES.values(), ids=BAD_TIMES)
def test_wrong_timestamps(times: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        as_timestamps(times)


def test_headers() -> None:
    columns = as_headers([[("a", b"1"), ("ö", None)], [], None, (("a", b""),)])
    assert columns is not None
    assert [columns.c.offsets[i] for i in range(5)] == [0, 2, 2, 2, 3]
    _, names, values, _ = columns._owners
    assert elements(names) == [b"a", "ö".encode(), b"a"]
    assert elements(values) == [b"1", None, b""]


@pytest.mark.parametrize("headers", [[[], None], []], ids=["none has any", "no record"])
def test_headers_that_are_empty(headers: Any) -> None:
    columns = as_headers(headers)
    assert columns is not None
    assert columns.n == len(headers)
    assert columns.c.names.n == 0


BAD_HEADERS = {
    "str for a record": ([[], "ab"], r"headers\[1\] is str"),
    "dict": ([{"a": b"1"}], r"headers\[0\] is dict: .*list\(headers.items\(\)\)"),
    "one of three": ([[("a", b"1", b"2")]], r"headers\[0\]\[0\]"),
    "name is bytes": ([[("a", b"1"), (b"a", b"1")]], r"headers\[0\]\[1\] is \(bytes, bytes\)"),
    "name is None": ([[(None, b"1")]], r"headers\[0\]\[0\] is \(NoneType, bytes\)"),
    "value is str": ([[("a", "1")]], r"headers\[0\]\[0\] is \(str, str\)"),
    "number": ([5], r"headers\[0\] is int"),
    "str": ("ab", "headers is str"),
    "all a number": (5, "headers is int"),
}


@pytest.mark.parametrize(("headers", "match"), BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_wrong_headers(headers: Any, match: str) -> None:
    with pytest.raises(InvalidTypeError, match=match):
        as_headers(headers)


@pytest.mark.parametrize(
    ("others", "match"),
    [
        ({"keys": [b"a"]}, "1 keys for 2 values"),
        ({"timestamps": [1, 2, 3]}, "3 timestamps for 2 values"),
        ({"headers": []}, "0 headers for 2 values"),
        ({"offsets": np.arange(1)}, "1 offsets for 2 values"),
    ],
    ids=["keys", "timestamps", "headers", "offsets"],
)
def test_lengths_must_agree(others: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        Columns([b"a", b"b"], **others)


@pytest.mark.parametrize(
    ("values", "longest"),
    [
        pytest.param([], 0, id="none"),
        pytest.param([None, None], 0, id="nulls"),
        pytest.param([b"a", None, b"bcd"], 3, id="list"),
        pytest.param([b"z" * (i % 7) for i in range(70_000)], 6, id="several-spans"),
        pytest.param([*[b"z"] * (1 << 15), b"zz"], 2, id="first-of-a-span"),
        pytest.param([*[b"z"] * ((1 << 15) - 1), b"zz"], 2, id="last-of-a-span"),
        pytest.param(np.zeros((3, 4), np.uint8), 4, id="fixed"),
        pytest.param(pa.array([b"x" * 9, b"y", None]).slice(1, 2), 1, id="arrow-slice"),
        pytest.param(pa.array([b"x" * 9, b"yy"], pa.large_binary()).slice(1, 1), 2, id="large-arrow-slice"),
    ],
)
def test_longest_element(values: Any, longest: int) -> None:
    column = as_column(values)
    assert column.longest(0) == longest
    assert column.longest(1 << 40) >= longest
