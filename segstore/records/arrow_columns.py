"""Converts Arrow arrays to columns of records, without a loop per record; nothing is on disk.

A column of one chunk is encoded from Arrow's own buffers. A column of several chunks or of views becomes
spans (pointer and length), which point into the memory of the chunks; the Column keeps this memory alive. C
checks that each offset lies in the memory into which it points.

The functions have no state, and are safe from any thread. The module imports pyarrow, so it is imported only
when Arrow data is passed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from segstore._native import ffi, held, lib
from segstore.arrays import np
from segstore.errors import InvalidArgumentError, InvalidTypeError
from segstore.records.column import (
    FIXED,
    SPANS,
    WIDE_OFFSETS,
    Column,
    HeaderColumns,
    no_headers,
    null_column,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

NARROW_OFFSETS = 1
_SPAN = 16
"""Size, in bytes, of a `seg_span` and of an element of an Arrow view array."""
_TEXTS = {pa.string(), pa.large_string(), pa.string_view()}
_BYTES = {pa.binary(), pa.large_binary(), pa.binary_view()}
_VIEWS = {pa.string_view(), pa.binary_view()}


class _Chunks(NamedTuple):
    """The arrays of a column, all of one type, which is neither a dictionary nor an extension type."""

    kind: pa.DataType
    arrays: list[pa.Array]

    @property
    def n(self) -> int:
        return sum(map(len, self.arrays))

    @property
    def nulls(self) -> int:
        return sum(array.null_count for array in self.arrays)


def _chunks(values: Any, name: str) -> _Chunks:
    try:
        if isinstance(values, pa.Array | pa.ChunkedArray):
            array = values
        elif hasattr(values, "__arrow_c_array__"):
            array = pa.array(values)
        else:
            array = pa.chunked_array(values)
    except (pa.ArrowException, TypeError, ValueError) as e:
        raise InvalidTypeError(f"{name} is {type(values).__name__}, no Arrow column: {e}") from e
    return _plain(array.type, array.chunks if isinstance(array, pa.ChunkedArray) else [array], name)


def _plain(kind: pa.DataType, arrays: Sequence[pa.Array], name: str) -> _Chunks:
    """Return the non-empty chunks with dictionaries decoded and extension types replaced by their storage."""
    arrays = [array for array in arrays if len(array)]
    try:
        # Each array is validated: an array from another library may claim more rows than its buffers have.
        for array in arrays:
            array.validate(full=pa.types.is_dictionary(kind))
        if isinstance(kind, pa.BaseExtensionType):
            return _plain(kind.storage_type, [array.storage for array in arrays], name)
        if pa.types.is_dictionary(kind):
            return _plain(_decoded_type(kind), [_of_dictionary(array) for array in arrays], name)
    except pa.ArrowException as e:
        raise InvalidArgumentError(f"{name} is no valid Arrow column: {e}") from e
    return _Chunks(kind, arrays)


def _decoded_type(kind: pa.DictionaryType) -> pa.DataType:
    return pa.large_binary() if kind.value_type in _VIEWS else kind.value_type


def _of_dictionary(array: pa.DictionaryArray) -> pa.Array:
    """Return the decoded values. polars stores a Categorical's strings as views, which pyarrow can't `take`,
    so views are cast to large_binary first.
    """
    return array.dictionary.cast(_decoded_type(array.type)).take(array.indices)


# --- byte strings ------------------------------------------------------------------------------


def column_from_arrow(values: Any, name: str) -> Column:
    """Return a Column over the buffers of an Arrow binary or string column. Raises InvalidTypeError,
    InvalidArgumentError.
    """
    return _column(_chunks(values, name), name)


def _column(chunks: _Chunks, name: str) -> Column:
    kind, arrays = chunks
    if pa.types.is_null(kind):
        return null_column(chunks.n)
    if not (kind in _BYTES or kind in _TEXTS or pa.types.is_fixed_size_binary(kind)):
        raise InvalidTypeError(f"{name} is of Arrow type {kind}: allowed are binary and string ones")
    if len(arrays) == 1 and kind not in _VIEWS:
        return over(arrays[0])
    return _spans(chunks, name)


def over(array: pa.Array) -> Column:
    """Return a Column over the buffers of one array of byte strings. The array must not be a view array."""
    buffers, at, n = array.buffers(), array.offset, len(array)
    validity = buffers[0] if array.null_count else None
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        data = buffers[1].slice(at * width, n * width) if buffers[1] is not None else None
        return Column(FIXED, n, data, validity=validity, validity_bit=at, width=width)
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    kind, size = (WIDE_OFFSETS, 8) if wide else (NARROW_OFFSETS, 4)
    offsets = buffers[1].slice(at * size, (n + 1) * size)
    return Column(kind, n, buffers[2], offsets, validity, at)


def _spans(chunks: _Chunks, name: str) -> Column:
    """Return a Column of spans (pointer and length), which point into the buffers of the chunks."""
    n, at, measures = chunks.n, 0, ffi.new("seg_measures *")
    spans = np.empty(n * _SPAN, np.uint8)
    for array in chunks.arrays:
        out = held("seg_span *", spans[at * _SPAN :])
        if chunks.kind in _VIEWS:
            done = _view_spans(array, out, measures)
        else:
            done = lib.seg_column_spans(over(array).c, out, measures)
        if done < 0:
            raise InvalidArgumentError(f"{name}[{at + measures.row}] lies outside of its column's memory")
        at += len(array)
    if measures.nulls == n:
        return null_column(n)
    column = Column(SPANS, n, offsets=spans, width=measures.most)
    column.c.data_len, column.c.nulls = measures.size, measures.nulls > 0
    column.keep(chunks.arrays)
    return column


def _view_spans(array: pa.Array, out: Any, measures: Any) -> int:
    validity, views, *data = array.buffers()
    owners = [held("uint8_t[]", each) for each in data if each is not None]
    buffers = ffi.new("seg_span[]", [(owner, len(owner)) for owner in owners])
    nulls = held("uint8_t *", validity) if array.null_count else ffi.NULL
    at, n = array.offset, len(array)
    first = held("uint8_t *", views.slice(at * _SPAN, n * _SPAN))
    return int(lib.seg_view_spans(first, n, nulls, at, buffers, len(owners), out, measures))


# --- times -------------------------------------------------------------------------------------


def timestamps_from_arrow(values: Any, name: str = "timestamps") -> NDArray[np.int64]:
    """Return the times in an Arrow timestamp, date or integer column as int64 ms. The column must have no
    nulls. A timestamp without a zone counts as UTC; units finer than ms are truncated. Raises
    InvalidArgumentError.
    """
    kind, arrays = chunks = _chunks(values, name)
    array = pa.chunked_array(arrays, kind)
    if chunks.nulls:
        i = np.asarray(array.is_null()).argmax()
        raise InvalidArgumentError(f"{name}[{i}] is null: allowed is ms since the epoch")
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        to_ms = pc.CastOptions(target_type=pa.timestamp("ms"), allow_time_truncate=True)
        try:
            array = array.cast(options=to_ms).cast(pa.int64())
        except pa.ArrowInvalid as e:
            raise InvalidArgumentError(f"{name} has a time that int64 ms do not reach: {e}") from e
    whole = array.chunk(0) if len(arrays) == 1 else array
    return np.asarray(whole)


# --- headers -----------------------------------------------------------------------------------

_HEADERS_ALLOWED = (
    "allowed are lists of struct<key: string, value: binary>, large lists and list views too, and"
    " map<string, binary>"
)
_IS_VIEW_OF = {"is_list": False, "is_large_list": False, "is_map": False} | {
    "is_list_view": True,
    "is_large_list_view": True,
}


def headers_from_arrow(values: Any, name: str) -> HeaderColumns:
    """Return the headers in an Arrow column of lists of pairs; a null list stands for a record without
    headers. No Python object is made per header. Raises InvalidTypeError, and InvalidArgumentError, for
    example for a null header or a null name.
    """
    chunks = _chunks(values, name)
    n, kind = chunks.n, chunks.kind
    if not pa.types.is_null(kind):
        _check_lists(kind, name)
    if pa.types.is_null(kind) or chunks.nulls == n:
        return no_headers(n)
    begins, ends, at, count = np.empty(n, np.int64), np.empty(n, np.int64), 0, 0
    pairs = []
    for array in chunks.arrays:
        span = slice(at, at + len(array))
        least, most = _ranges(array, begins[span], ends[span], f"{name}[{{}}]", at)
        if least < most:
            pairs.append(array.values.slice(least, most - least))
            _check_names(pairs[-1], begins[span] - least, ends[span] - least, name, at)
        for edges in (begins[span], ends[span]):
            # Negative results become 0: they belong to empty lists, which may have any offsets.
            np.maximum(edges + (count - least), 0, out=edges)
        at, count = at + len(array), count + most - least
    if not pairs:
        return no_headers(n)
    return HeaderColumns(begins, *_names_and_values(pairs, name), ends)


def _check_lists(kind: pa.DataType, name: str) -> None:
    if not any(getattr(pa.types, each)(kind) for each in _IS_VIEW_OF):
        raise InvalidTypeError(f"{name} is of Arrow type {kind}: {_HEADERS_ALLOWED}")
    if pa.types.is_map(kind):
        of_key, of_value = kind.key_type, kind.item_type
    else:
        pair = kind.value_type
        if pa.types.is_null(pair):
            return
        if not pa.types.is_struct(pair) or sorted(field.name for field in pair) != ["key", "value"]:
            raise InvalidTypeError(f"{name} is of Arrow type {kind}: {_HEADERS_ALLOWED}")
        of_key, of_value = pair.field("key").type, pair.field("value").type
    if not _is_text(of_key) or not _is_bytes(of_value):
        raise InvalidTypeError(f"{name} is of Arrow type {kind}: {_HEADERS_ALLOWED}")


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_null(kind) or _decoded(kind) in _TEXTS


def _is_bytes(kind: pa.DataType) -> bool:
    kind = _decoded(kind)
    return _is_text(kind) or kind in _BYTES or pa.types.is_fixed_size_binary(kind)


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _ranges(
    array: pa.Array, begins: NDArray[np.int64], ends: NDArray[np.int64], place: str, at: int
) -> tuple[int, int]:
    """Fill `begins` and `ends` with the range of items of each list. Return (least begin of any list, largest
    end of any list).
    """
    kind, n, first = array.type, len(array), array.offset
    wide = pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind)
    views = pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)
    size = 8 if wide else 4
    validity, offsets, *more = array.buffers()
    sizes = held("char *", more[0].slice(first * size, n * size)) if views else ffi.NULL
    nulls = held("uint8_t *", validity) if array.null_count else ffi.NULL
    measures = ffi.new("seg_measures *")
    done = lib.seg_list_ranges(
        held("char *", offsets.slice(first * size, (n + (not views)) * size)), sizes, wide, n, nulls, first,
        len(array.values), held("int64_t *", begins), held("int64_t *", ends), measures,
    )  # fmt: skip
    if done < 0:
        raise InvalidArgumentError(f"{place.format(at + measures.row)} lies outside of its column's headers")
    return measures.least, measures.most


def _check_names(
    pairs: pa.Array, begins: NDArray[np.int64], ends: NDArray[np.int64], name: str, at: int
) -> None:
    """Raise InvalidArgumentError for the first record that has a null header, or a header with a
    null name.
    """
    names = pairs.field(_key_and_value(pairs.type)[0]) if pa.types.is_struct(pairs.type) else pairs
    if not names.null_count and not pairs.null_count:
        return
    missing = np.asarray(names.is_null()) | np.asarray(pairs.is_null())
    before = np.concatenate([[0], np.cumsum(missing)])
    wrong = before[np.maximum(ends, 0)] > before[np.maximum(begins, 0)]
    if wrong.any():
        i = int(wrong.argmax())
        j = int(missing[begins[i] : ends[i]].argmax())
        what = "is null" if not pairs.is_valid()[int(begins[i]) + j].as_py() else "has a null key"
        raise InvalidArgumentError(f"{name}[{at + i}][{j}] {what}: each header must have a name")


def _names_and_values(pairs: list[pa.Array], name: str) -> tuple[Column, Column]:
    """Return (column of the names, column of the values) of the pairs."""
    if pa.types.is_null(pairs[0].type):
        count = sum(map(len, pairs))
        return null_column(count), null_column(count)
    made = []
    for part, label in zip(_key_and_value(pairs[0].type), (f"{name}, keys", f"{name}, values"), strict=True):
        arrays = [pair.field(part) for pair in pairs]
        made.append(_column(_plain(arrays[0].type, arrays, label), label))
    return made[0], made[1]


def _key_and_value(pair: pa.StructType) -> tuple[int, int]:
    """Return (field index of the key, field index of the value). A map's fields may have any names."""
    return (1, 0) if [field.name for field in pair] == ["value", "key"] else (0, 1)
