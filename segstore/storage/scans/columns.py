"""Makes the columns of a topic's table, as Arrow arrays. Nothing is on disk.

Threads: any; functions without state. The module imports pyarrow, and is imported only when a table is asked
for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from segstore.arrays import np
from segstore.records.arrow import HEADER_TYPE, header_array
from segstore.records.table import RecordTable, Strings

if TYPE_CHECKING:
    from numpy.typing import NDArray

TIMESTAMP_TYPE = pa.timestamp("ms", "UTC")
TOPIC_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", TIMESTAMP_TYPE, nullable=False),
        pa.field("timestamp_type", pa.int8(), nullable=False),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADER_TYPE),
    ]
)
"""The schema of a topic's table: timestamp in ms since the epoch, timestamp_type 0 (CreateTime) or 1
(LogAppendTime).
"""


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """Return the schema of the named columns, in this order, or of all columns if `columns` is None."""
    return TOPIC_SCHEMA if columns is None else pa.schema([TOPIC_SCHEMA.field(name) for name in columns])


def pooled(n: int, kind: Any) -> NDArray[Any]:
    """Return an array in memory of pyarrow's pool, which reuses the memory of released batches."""
    size = n * np.dtype(kind).itemsize
    return np.frombuffer(pa.allocate_buffer(size), kind) if n else np.empty(0, kind)


class BatchMaker:
    """Makes record batches of a schema from rows of one topic's partitions. Threads: any number at a time."""

    def __init__(self, topic: str, schema: pa.Schema) -> None:
        self._topic, self._schema = pa.scalar(topic, pa.string()), schema

    def batches(self, partition: int, rows: RecordTable) -> list[pa.RecordBatch]:
        """Return the rows as record batches (usually one), which use the memory of `rows`."""
        if not len(self._schema):
            return [_without_columns(len(rows))] if len(rows) else []
        stored = {field.name: _column(field, rows) for field in self._schema if field.name not in _CONSTANT}
        constants = {"topic": self._topic, "partition": pa.scalar(partition, pa.int32())}
        made, most = [], self._most_rows(bool(stored))
        for first in range(0, len(rows), most):
            n = min(len(rows) - first, most)
            arrays = [
                stored[name].slice(first, n) if name in stored else constant(n, constants[name])
                for name in self._schema.names
            ]
            made.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        return made

    def _most_rows(self, has_more: bool) -> int:
        """Return the largest number of rows of a batch. `has_more`: whether the batch has columns other than
        topic and partition.
        """
        if has_more:
            return _MOST_ROWS
        if "topic" not in self._schema.names:
            return _MOST_NUMBERS
        return _MOST_TOPICS if len(self._topic.as_py()) <= _SHORT else _MOST_ROWS


_CONSTANT = frozenset({"topic", "partition"})
_MOST_ROWS, _MOST_TOPICS, _MOST_NUMBERS = 1 << 17, 1 << 20, 1 << 22
"""The most rows of a batch in general, of a batch with only the columns topic and partition, and of a batch
with only the column partition. Queries that only count get larger batches, because each batch has costs in a
query engine.
"""
_SHORT = 16
"""If a topic's name is longer than this, batches have at most _MOST_ROWS rows, because each row repeats the
name.
"""


def _without_columns(n: int) -> pa.RecordBatch:
    """Return a batch of `n` rows without columns."""
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), n, [None]))


def _column(field: pa.Field, rows: RecordTable) -> pa.Array:
    n = len(rows)
    if field.name == "headers":
        return _headers(rows)
    if field.name in rows.strings:
        return _strings(rows.strings[field.name], n)
    return pa.Array.from_buffers(field.type, n, [None, pa.py_buffer(rows.arrays[field.name][:n])], 0)


def constant(n: int, value: pa.Scalar) -> pa.Array:
    """Return a column of `n` rows that all have the same value. The column is kept, and later batches use it
    again.
    """
    size = next((size for size in (1 << 14, _MOST_ROWS, _MOST_TOPICS, _MOST_NUMBERS) if n <= size), n)
    return _repeated(size, value).slice(0, n)


@lru_cache(maxsize=4)
def _repeated(n: int, value: pa.Scalar) -> pa.Array:
    return pa.repeat(value, n)


def _strings(column: Strings, n: int) -> pa.Array:
    validity = pa.py_buffer(column.validity[: (n + 7) // 8]) if column.nulls else None
    buffers = [validity, pa.py_buffer(column.offsets[: n + 1]), pa.py_buffer(column.data[: column.used])]
    return pa.Array.from_buffers(pa.binary(), n, buffers, column.nulls)


def _headers(rows: RecordTable) -> pa.Array:
    parts = [header_array(n, column) for n, column in rows.headers]
    return pa.concat_arrays(parts) if len(parts) > 1 else parts[0] if parts else pa.array([], HEADER_TYPE)
