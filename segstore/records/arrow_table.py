"""Reads the columns of a table of records, which may be a table of any engine, through Arrow's C interface;
nothing is on disk.

The functions have no state, and are safe from any thread. The module imports pyarrow, so it is imported only
when a table is passed in.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from segstore.arrays import np
from segstore.errors import InvalidArgumentError, InvalidTypeError
from segstore.records.arrow_columns import column_from_arrow
from segstore.records.column import Column, HeaderColumns
from segstore.records.columns import as_headers, as_timestamps

if TYPE_CHECKING:
    from numpy.typing import NDArray

TAKEN = ("value", "key", "timestamp", "headers")
LEFT_OUT = ("topic", "partition", "offset", "timestamp_type")
"""Columns that the table of a topic may have, but that are ignored: the log to which the records are appended
decides the values of these columns.
"""
_ALLOWED_TABLES = (
    "allowed is a table of pyarrow, polars, pandas or DuckDB, Records, a scan, or another object with"
    " __arrow_c_stream__ or __arrow_c_array__"
)

_MAKING = ("collect", "to_table")
"""Methods by which a LazyFrame and a dataset return a table."""


class TableColumns(NamedTuple):
    """Columns of records, in the form of the arguments of `PartitionLog.append_batch`. A column that the
    table lacks is None.
    """

    values: Column
    keys: Column | None
    timestamps: NDArray[np.int64] | None
    headers: HeaderColumns | None


def columns_of_table(table: Any) -> TableColumns:
    """Return the columns value (required), key, timestamp and headers of a table of records.

    Columns in LEFT_OUT are ignored. A stream is read to its end. Raises InvalidTypeError. Raises
    InvalidArgumentError if the table has no value, a column twice, or a column with another name.
    """
    read = read_table(table)
    _check_names(read.schema.names)
    value, key, timestamp, headers = (
        read.column(name) if name in read.schema.names else None for name in TAKEN
    )
    return TableColumns(
        column_from_arrow(value, "value"),
        None if key is None else column_from_arrow(key, "key"),
        as_timestamps(timestamp, "timestamp"),
        as_headers(headers, "headers"),
    )


def _check_names(names: list[str]) -> None:
    for name in names:
        if name not in TAKEN and name not in LEFT_OUT:
            raise InvalidArgumentError(
                f"column {name!r}: allowed are {', '.join(TAKEN)}; left out are {', '.join(LEFT_OUT)}"
            )
        if names.count(name) > 1:
            raise InvalidArgumentError(f"column {name!r} is there {names.count(name)} times: allowed is one")
    if "value" not in names:
        raise InvalidArgumentError(
            f"no column 'value' among {', '.join(map(repr, names)) or 'none'}: it must be there; nulls stand"
            " for records without a value"
        )


def read_table(table: Any) -> pa.Table:
    """Return a table of any engine as a pyarrow table, over the same memory if the engine has its data in
    Arrow's format. Raises InvalidTypeError.
    """
    if isinstance(table, pa.Table):
        return table
    if _is_pandas(table):
        return _from_pandas(table)
    # pyarrow's own readers are not read through Arrow's C interface, because it would turn an error of Python
    # code into a pyarrow error.
    if isinstance(table, pa.RecordBatchReader):
        return table.read_all()
    if type(table).__module__.startswith("segstore.") and hasattr(table, "to_arrow"):
        return table.to_arrow()
    if hasattr(table, "__arrow_c_stream__"):
        return _reader(table).read_all()
    if hasattr(table, "__arrow_c_array__"):
        try:
            return pa.Table.from_batches([pa.record_batch(table)])
        except (pa.ArrowException, TypeError, ValueError) as e:
            raise _refused(table, e) from e
    if callable(getattr(table, "to_arrow_reader", None)):  # DuckDB's results have this method
        return table.to_arrow_reader().read_all()
    way = next((f"; its {name}() gives one" for name in _MAKING if hasattr(table, name)), "")
    raise InvalidTypeError(f"table is {type(table).__name__}: {_ALLOWED_TABLES}{way}")


def _reader(table: Any) -> pa.RecordBatchReader:
    try:
        return pa.RecordBatchReader.from_stream(table)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as e:
        raise _refused(table, e) from e


def _is_pandas(table: Any) -> bool:
    return "pandas" in sys.modules and isinstance(table, sys.modules["pandas"].DataFrame)


def _from_pandas(frame: Any) -> pa.Table:
    """Return a pyarrow table of a DataFrame; a named index becomes a column."""
    indexed = any(name is not None for name in frame.index.names)
    try:
        return pa.Table.from_pandas(frame, preserve_index=indexed)
    except (pa.ArrowException, ValueError) as e:
        raise _refused(frame, e) from e


def _refused(table: Any, why: Exception) -> InvalidTypeError:
    return InvalidTypeError(f"table is {type(table).__name__}, no table of records: {why}")
