"""Columns of byte strings as C reads them: many values behind one address; nothing on disk.

A Column is immutable once made and owns what its pointers point into, so that any thread may encode
from it; the caller must not change an array or a bytearray that it handed in until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from segstore._native import ffi
from segstore.errors import InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Header = tuple[str, Union[bytes, None]]

NULLS, WIDE_OFFSETS, FIXED = 0, 2, 3
"""Kinds of seg_column that are made here; kind 1 (int32 offsets) comes from Arrow."""

_ALLOWED = "bytes, bytearray, memoryview or None"


class Column:
    """`n` byte strings, each of which may be null. `c` is the `seg_column *`."""

    __slots__ = ("_owners", "c", "n")

    def __init__(
        self,
        kind: int,
        n: int,
        data: Any = None,
        offsets: Any = None,
        validity: Any = None,
        validity_bit: int = 0,
        width: int = 0,
    ) -> None:
        self.n = n
        self.c = c = ffi.new("seg_column *")
        c.kind, c.n, c.width, c.validity_bit = kind, n, width, validity_bit
        keep = [ffi.from_buffer(part) for part in (data, offsets, validity) if part is not None and len(part)]
        self._owners = keep
        parts = iter(keep)
        if data is not None and len(data):
            c.data = pointer = next(parts)
            c.data_len = len(pointer)
        if offsets is not None and len(offsets):
            c.offsets = next(parts)
        if validity is not None and len(validity):
            c.validity = next(parts)


def as_column(values: Any, name: str = "values") -> Column:
    """A Column of `values`, whose `name` is told in errors.

    Takes a list, tuple or iterable of bytes, bytearray, memoryview or None; numpy arrays of dtype S
    (elements as numpy gives them: without trailing NULs), V, object, or uint8 of shape (n, width);
    binary and string columns of pyarrow, or of whatever exports Arrow's C interface. Arrays are
    not copied where C can read them as they are. InvalidTypeError names the wrong element.
    """
    if isinstance(values, (list, tuple)):
        return _from_list(values, name)
    if isinstance(values, np.ndarray):
        return _from_numpy(values, name)
    if hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_c_stream__"):
        from segstore.records.arrow import column_from_arrow

        return column_from_arrow(values, name)
    if isinstance(values, (str, bytes, bytearray, memoryview)) or not isinstance(values, Iterable):
        raise InvalidTypeError(
            f"{name} is {type(values).__name__}: allowed are a sequence of {_ALLOWED}, "
            "a numpy array or an Arrow array"
        )
    return _from_list(list(values), name)


def null_column(n: int) -> Column:
    """`n` nulls."""
    return Column(NULLS, n)


def _from_list(items: Sequence[Any], name: str) -> Column:
    kinds = set(map(type, items))
    _check_kinds(kinds, items, name)
    validity = None
    if type(None) in kinds:
        if len(kinds) == 1:
            return Column(NULLS, len(items))
        present = np.fromiter((item is not None for item in items), np.bool_, len(items))
        validity = np.packbits(present, bitorder="little")
        items = [b"" if item is None else item for item in items]
    if any(issubclass(kind, memoryview) for kind in kinds):
        items = [item.tobytes() if isinstance(item, memoryview) else item for item in items]
    return Column(WIDE_OFFSETS, len(items), b"".join(items), _offsets(map(len, items), len(items)), validity)


def _check_kinds(kinds: set[type], items: Sequence[Any], name: str) -> None:
    wrong = {kind for kind in kinds if not issubclass(kind, (bytes, bytearray, memoryview, type(None)))}
    if wrong:
        i, item = next((i, item) for i, item in enumerate(items) if type(item) in wrong)
        hint = "; encode it first" if isinstance(item, str) else ""
        raise InvalidTypeError(f"{name}[{i}] is {type(item).__name__}: allowed is {_ALLOWED}{hint}")


def _offsets(lengths: Iterable[int], n: int) -> NDArray[np.int64]:
    offsets = np.empty(n + 1, np.int64)
    offsets[0] = 0
    np.cumsum(np.fromiter(lengths, np.int64, n), out=offsets[1:])
    return offsets


def _from_numpy(array: NDArray[Any], name: str) -> Column:
    if isinstance(array, np.ma.MaskedArray) or (array.dtype.kind == "O" and array.ndim == 1):
        return _from_list(array.tolist(), name)
    if array.dtype == np.uint8 and array.ndim == 2:
        array = np.ascontiguousarray(array)
        return Column(FIXED, len(array), _flat(array), width=array.shape[1])
    if array.dtype.kind not in "SV" or array.ndim != 1:
        raise InvalidTypeError(
            f"{name} is a numpy array of {array.dtype}, {array.ndim}-dimensional: allowed are 1-dimensional "
            "arrays of dtype S, V or object and 2-dimensional ones of uint8"
        )
    array = np.ascontiguousarray(array)
    width = array.dtype.itemsize
    if array.dtype.kind == "V" or not len(array) or not width:
        return Column(FIXED, len(array), _flat(array), width=width)
    return _from_padded(array.view(np.uint8).reshape(len(array), width))


def _flat(array: NDArray[Any]) -> NDArray[np.uint8] | None:
    return array.reshape(-1).view(np.uint8) if array.size and array.dtype.itemsize else None


def _from_padded(table: NDArray[np.uint8]) -> Column:
    """dtype S: trailing NULs are padding, as numpy has it."""
    n, width = table.shape
    if table[:, -1].all():
        return Column(FIXED, n, table.reshape(-1), width=width)
    lengths = np.char.str_len(table.reshape(-1).view(f"S{width}"))
    data = table[np.arange(width) < lengths[:, None]]
    return Column(WIDE_OFFSETS, n, data, _offsets(lengths.tolist(), n))


class HeaderColumns:
    """The headers of `n` records, flat. `c` is the `seg_header_columns *`."""

    __slots__ = ("_owners", "c", "n")

    def __init__(self, offsets: NDArray[np.int64], names: Column, values: Column) -> None:
        self.n = len(offsets) - 1
        pointer = ffi.from_buffer("int64_t[]", offsets)
        self.c = c = ffi.new("seg_header_columns *")
        c.offsets, c.n = pointer, self.n
        c.names, c.values = names.c[0], values.c[0]
        self._owners = (pointer, names, values)


def as_headers(headers: Iterable[Iterable[Header] | None] | None) -> HeaderColumns | None:
    """HeaderColumns of one sequence of (str, bytes or None) for each record; None where there are none."""
    if headers is None:
        return None
    if isinstance(headers, (str, bytes)):
        raise InvalidTypeError(f"headers is {type(headers).__name__}: {_HEADERS_ALLOWED}")
    lists = [list(_pairs(of_one, i)) for i, of_one in enumerate(headers)]
    if not any(lists):
        return HeaderColumns(np.zeros(len(lists) + 1, np.int64), null_column(0), null_column(0))
    names = [name for of_one in lists for name, _ in of_one]
    values = [value for of_one in lists for _, value in of_one]
    return HeaderColumns(
        _offsets(map(len, lists), len(lists)), _from_list(names, "header names"), _from_list(values, "header values")
    )


_HEADERS_ALLOWED = "allowed is, for each record, a sequence of (str, bytes or None)"


def _pairs(of_one: Any, i: int) -> Iterable[tuple[bytes, Any]]:
    if of_one is None:
        return
    if isinstance(of_one, (str, bytes)) or not isinstance(of_one, Iterable):
        raise InvalidTypeError(f"headers[{i}] is {type(of_one).__name__}: {_HEADERS_ALLOWED}")
    for j, pair in enumerate(of_one):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidTypeError(f"headers[{i}][{j}] is {pair!r:.80}: {_HEADERS_ALLOWED}")
        name, value = pair
        good = isinstance(name, str) and isinstance(value, (bytes, bytearray, memoryview, type(None)))
        if not good:
            what = f"({type(name).__name__}, {type(value).__name__})"
            raise InvalidTypeError(f"headers[{i}][{j}] is {what}: {_HEADERS_ALLOWED}")
        yield name.encode(), value


def as_timestamps(timestamps: Any) -> NDArray[np.int64] | None:
    """int64 ms since the epoch from ints, numpy datetime64 or an Arrow timestamp or int column.

    InvalidTypeError for what is no integer or time; InvalidArgumentError names a negative one (-1, Kafka's
    NO_TIMESTAMP, is allowed) or a missing one.
    """
    if timestamps is None:
        return None
    if hasattr(timestamps, "__arrow_c_array__") or hasattr(timestamps, "__arrow_c_stream__"):
        from segstore.records.arrow import timestamps_from_arrow

        timestamps = timestamps_from_arrow(timestamps)
    array = np.asarray(timestamps if isinstance(timestamps, (np.ndarray, list, tuple)) else list(timestamps))
    if array.dtype.kind == "M":
        missing = np.isnat(array)
        array = array.astype("datetime64[ms]").astype(np.int64)
        _refuse(missing, array, "missing (NaT)")
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise InvalidTypeError(
            f"timestamps are {array.dtype}, {array.ndim}-dimensional: allowed is one int (ms since the "
            "epoch) or numpy datetime64 for each record"
        )
    _refuse(array < -1, array, "negative")
    if array.dtype == np.uint64:
        _refuse(array > np.uint64(2**63 - 1), array, "above int64")
    return np.ascontiguousarray(array, np.int64)


def _refuse(wrong: NDArray[np.bool_], array: NDArray[Any], why: str) -> None:
    if wrong.any():
        i = int(wrong.argmax())
        raise InvalidArgumentError(f"timestamps[{i}] is {why}: {array[i]}; allowed is -1 to 2^63 - 1")


class Columns:
    """The columns of `n` records to encode: values, keys, headers, timestamps (ms) and offsets.

    `timestamps` may be None (then one `timestamp` for all), `offsets` None (contiguous; else absolute and
    rising, gaps stay), `headers` None. InvalidArgumentError where their lengths differ.
    """

    __slots__ = ("headers", "keys", "n", "offsets", "timestamp", "timestamps", "values")

    def __init__(
        self,
        values: Any,
        keys: Any = None,
        timestamps: Any = None,
        headers: Iterable[Iterable[Header] | None] | None = None,
        timestamp: int = -1,
        offsets: NDArray[np.int64] | None = None,
    ) -> None:
        self.values = values if isinstance(values, Column) else as_column(values)
        self.n = n = self.values.n
        if keys is None:
            self.keys = null_column(n)
        else:
            self.keys = keys if isinstance(keys, Column) else as_column(keys, "keys")
        self.headers = headers if isinstance(headers, HeaderColumns) else as_headers(headers)
        self.timestamp = timestamp
        self.timestamps = as_timestamps(timestamps)
        self.offsets = None if offsets is None else np.ascontiguousarray(offsets, np.int64)
        lengths = {"keys": self.keys.n, "headers": self.headers.n if self.headers else n}
        lengths["timestamps"] = n if self.timestamps is None else len(self.timestamps)
        lengths["offsets"] = n if self.offsets is None else len(self.offsets)
        for name, length in lengths.items():
            if length != n:
                raise InvalidArgumentError(f"{length:,} {name} for {n:,} values: one for each is allowed")


