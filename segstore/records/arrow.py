"""Converts records to Arrow tables, without a loop per record; nothing is on disk.

The functions have no state, and are safe from any thread. The module imports pyarrow, so it is imported only
when Arrow data is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from segstore._native import ffi, held, lib
from segstore.arrays import np
from segstore.errors import InvalidArgumentError
from segstore.integers import INT32_MAX

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

    from segstore.records.lazy_columns import ByteColumn, HeaderColumn

HEADER_TYPE = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADER_TYPE),
    ]
)
"""The schema of the tables that `Records.to_arrow` returns; timestamps are ms since the epoch."""


def validity_bitmap(lengths: NDArray[np.int64]) -> Any:
    """Return an Arrow validity bitmap for elements with these lengths; an element with a negative length is
    null. Return None if no length is negative.
    """
    present = lengths >= 0
    return None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))


MOST_BYTES = INT32_MAX
"""Largest number of bytes of one column in one chunk of a table, because the column's offsets are int32."""


class Rows(Protocol):
    """The columns of records that a table is made from. `arena` is the memory that has the bytes of keys,
    values and headers.
    """

    arena: Any

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Return the offsets, one for each record."""

    @property
    def timestamps(self) -> NDArray[np.int64]:
        """Return the timestamps, in ms."""

    @property
    def keys(self) -> ByteColumn:
        """Return the keys, bytes or None."""

    @property
    def values(self) -> ByteColumn:
        """Return the values, bytes or None."""

    @property
    def headers(self) -> HeaderColumn:
        """Return the headers: for each record, pairs of str and (bytes or None)."""

    def __len__(self) -> int:
        """Return the number of records."""

    def __getitem__(self, at: slice) -> Self:
        """Return the records of a slice."""


def table(records: Rows, columns: list[str] | None = None) -> pa.Table:
    """Return the records as a table with all columns of SCHEMA, or only with `columns`, in this order."""
    return table_of([records], columns)


def table_of(parts: Iterable[Rows], columns: list[str] | None = None) -> pa.Table:
    """Return the records of several parts, in order, as one table with all columns of SCHEMA, or only with
    `columns`.
    """
    schema = _schema(columns)
    return pa.Table.from_batches(_batches(parts, schema), schema)


def reader_of(parts: Iterable[Rows]) -> pa.RecordBatchReader:
    """Return an Arrow reader of SCHEMA, which makes each batch of rows when the batch is asked for."""
    return pa.RecordBatchReader.from_batches(SCHEMA, _batches(parts, SCHEMA))


def _schema(columns: list[str] | None) -> pa.Schema:
    for name in columns or ():
        if name not in SCHEMA.names:
            raise InvalidArgumentError(f"column {name!r}: allowed are {', '.join(SCHEMA.names)}")
    return pa.schema([SCHEMA.field(name) for name in columns]) if columns else SCHEMA


def _batches(parts: Iterable[Rows], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for records in parts:
        for columns in arrays(records, schema.names):
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def arrays(records: Rows, names: Sequence[str] = SCHEMA.names) -> Iterator[list[pa.Array]]:
    """Split the records into consecutive ranges that are small enough for int32 offsets. For each range yield
    the columns `names` of SCHEMA.
    """
    n = len(records)
    if n > 1 and len(records.arena) > MOST_BYTES and _largest_column(records) > MOST_BYTES:
        yield from arrays(records[: n // 2], names)
        yield from arrays(records[n // 2 :], names)
        return
    yield [_COLUMNS[name](records) for name in names]


def _largest_column(records: Rows) -> int:
    lengths = (records.keys.lengths, records.values.lengths)
    return max(_extent(np.ascontiguousarray(column))[0] for column in lengths)


def gather(column: ByteColumn) -> pa.Array:
    """Return a pa.binary() array of a column. C copies the bytes out of the column's memory."""
    n, at, lengths = len(column), np.ascontiguousarray(column.at), np.ascontiguousarray(column.lengths)
    size, nulls = _extent(lengths)
    if 0 < nulls == n:
        return beginning(_nulls, n)
    data, offsets = np.empty(max(size, 1), np.uint8), np.empty(n + 1, np.int32)
    done = lib.seg_gather(
        ffi.from_buffer("uint8_t[]", column.arena), len(column.arena), _int64s(at), _int64s(lengths), n, 0,
        ffi.from_buffer("uint8_t[]", data), len(data), ffi.from_buffer("int32_t[]", offsets),
    )  # fmt: skip
    if done < 0:
        raise AssertionError(f"columns of Records can't be gathered: {done}")
    validity = validity_bitmap(lengths) if nulls else None
    return pa.Array.from_buffers(pa.binary(), n, [validity, pa.py_buffer(offsets), pa.py_buffer(data)])


def _extent(lengths: NDArray[np.int64]) -> tuple[int, int]:
    """Return the total size, in bytes, of byte strings with these lengths, and the number of nulls (length
    -1).
    """
    nulls = ffi.new("int64_t *")
    size = lib.seg_extent(_int64s(lengths), len(lengths), nulls)
    return int(size), int(nulls[0])


@lru_cache(maxsize=4)
def _nulls(n: int) -> pa.Array:
    return pa.nulls(n, pa.binary())


@lru_cache(maxsize=4)
def _no_headers(n: int) -> pa.Array:
    # The child array of pa.nulls has long buffers, which IPC would write, so an empty child replaces it.
    made, children = pa.nulls(n, HEADER_TYPE), [pa.array([], HEADER_TYPE.value_type)]
    return pa.Array.from_buffers(HEADER_TYPE, n, made.buffers()[:2], n, children=children)


def beginning(make: Callable[..., pa.Array], n: int, *of: object) -> pa.Array:
    """Return an array of `n` elements: the first elements of an array that `make(m, *of)` makes for some m >=
    n. Arrays of up to `_MOST` elements are cached, and shared by many tables.
    """
    size = max(_LEAST, 1 << (n - 1).bit_length())
    return make(size, *of)[:n] if size <= _MOST else make.__wrapped__(n, *of)  # type: ignore[attr-defined]


_LEAST, _MOST = 1 << 14, 1 << 17


def _int64s(array: NDArray[np.int64]) -> Any:
    return held("int64_t[]", array) if len(array) else ffi.NULL


def _headers(records: Rows) -> pa.Array:
    n = len(records)
    return header_array(n, records.headers if records.headers.present and n else None)


def header_array(n: int, headers: HeaderColumn | None) -> pa.Array:
    """Return an array of HEADER_TYPE with `n` records. `headers` None means that no record has a header."""
    if headers is None:
        return beginning(_no_headers, n)
    counts, names, values = headers.flat()
    offsets = np.zeros(n + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    pairs = pa.StructArray.from_arrays([_names(names), gather(values)], fields=list(HEADER_TYPE.value_type))
    validity = validity_bitmap(counts - 1)
    return pa.Array.from_buffers(HEADER_TYPE, n, [validity, pa.py_buffer(offsets)], children=[pairs])


def _names(names: ByteColumn) -> pa.Array:
    try:
        return gather(names).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([(name or b"").decode(errors="replace") for name in names], pa.string())


_COLUMNS: dict[str, Callable[[Rows], pa.Array]] = {
    "offset": lambda records: pa.array(records.offsets),
    "timestamp": lambda records: pa.array(records.timestamps),
    "key": lambda records: gather(records.keys),
    "value": lambda records: gather(records.values),
    "headers": _headers,
}
