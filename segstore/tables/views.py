"""Converts Arrow arrays of bytes and strings to arrays of views. polars uses arrays of views as they are; it
would convert arrays with offsets to views itself, but in one thread only. Nothing is on disk.

Functions without state: safe from any thread. This module imports pyarrow, so it is imported only when
polars asks for records.
"""

from __future__ import annotations

import pyarrow as pa

from segstore._native import held, lib
from segstore.arrays import np
from segstore.errors import InvalidArgumentError
from segstore.records.arrow_columns import over

_SIZE = 16
"""The size of a view in bytes."""
_VIEWS = {pa.binary(): pa.binary_view(), pa.string(): pa.string_view()}


def with_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a record batch in which the columns of type binary and string are arrays of views, which refer
    to the same bytes. Nested columns, such as headers, stay unchanged.
    """
    if not any(each.type in _VIEWS for each in batch.schema):
        return batch
    return pa.record_batch([viewed(each) for each in batch.columns], names=batch.schema.names)


def viewed(array: pa.Array) -> pa.Array:
    """Return an array of type binary or string as an array of views, which refer to the same bytes; return an
    array of another type unchanged. Raises InvalidArgumentError if an offset is outside of these bytes.
    """
    kind, n = _VIEWS.get(array.type), len(array)
    if kind is None or not n:
        return array if kind is None else pa.array([], kind)
    validity, _, data = array.buffers()
    # The null bitmap begins at a whole byte, so it may have up to 7 bits before the first value.
    at = array.offset % 8 if array.null_count else 0
    views = pa.allocate_buffer((at + n) * _SIZE)
    memory, column = np.frombuffer(views, np.uint8), over(array)
    memory[: at * _SIZE] = 0
    if lib.seg_column_views(column.c, held("uint8_t *", memory[at * _SIZE :])) < 0:
        raise InvalidArgumentError("an offset of an Arrow column lies outside of its memory")
    buffers = [validity.slice(array.offset // 8) if array.null_count else None, views, data]
    return pa.Array.from_buffers(kind, n, buffers, array.null_count, at)
