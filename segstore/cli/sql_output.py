"""Writes a query's result to a stream, one batch after another, as CSV, JSON, NDJSON, Parquet or Arrow IPC.

On disk: this module opens no file. Threads: one. The module imports pyarrow, so it is imported only when a
query is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from segstore.cli.sql_text import TEXT, json_rows, texts
from segstore.errors import SegstoreError

GROUP_ROWS, GROUP_BYTES = 1 << 17, 64 << 20
"""A row group of Parquet is written when it has at least GROUP_ROWS rows, or GROUP_BYTES bytes before
compression.
"""


class Result(NamedTuple):
    """The result rows of a statement. `kinds` are SQL's names for the types of the columns."""

    names: Sequence[str]
    kinds: Sequence[str]
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def distinct(names: Sequence[str]) -> list[str]:
    """Return unique names for columns. If two columns are named "a", the second gets the name "a_1"."""
    found: dict[str, None] = {}
    for name in names:
        number, one = 0, name
        while one in found:
            number, one = number + 1, f"{name}_{number + 1}"
        found[one] = None
    return list(found)


# --- text --------------------------------------------------------------------------------------


def csv(result: Result, stream: BinaryIO) -> None:
    """Write a line with the names of the columns, and a line for each row. Null is written as an empty cell,
    and an empty text as two quotation marks.
    """
    header = [pa.array([name], TEXT) for name in result.names]
    stream.write(_data(_csv_lines(header)))
    for batch in result.batches:
        stream.write(_data(_csv_lines([texts(column) for column in batch.columns])))


def _csv_lines(columns: Sequence[pa.Array]) -> pa.Array:
    line = pc.binary_join_element_wise(*map(_csv_cells, columns), _scalar(","))
    return pc.binary_join_element_wise(line, _scalar("\n"), _scalar(""))


def _csv_cells(column: pa.Array) -> pa.Array:
    special = pc.or_(pc.match_substring_regex(column, '[",\r\n]'), pc.equal(column, _scalar("")))
    if pc.any(special).as_py():
        doubled = pc.replace_substring(column, '"', '""')
        quoted = pc.binary_join_element_wise(_scalar('"'), doubled, _scalar('"'), _scalar(""))
        column = pc.if_else(special, quoted, column)
    return pc.fill_null(column, "")


def ndjson(result: Result, stream: BinaryIO) -> None:
    """Write a line with a JSON object for each row."""
    names = distinct(result.names)
    for batch in result.batches:
        lines = pc.binary_join_element_wise(json_rows(names, result.kinds, batch), _scalar("\n"), _scalar(""))
        stream.write(_data(lines))


def json_array(result: Result, stream: BinaryIO) -> None:
    """Write a JSON array with an object for each row. Each object is on a line of its own."""
    names, begin = distinct(result.names), b"["
    for batch in result.batches:
        lines = pc.binary_join_element_wise(
            _scalar(",\n"), json_rows(names, result.kinds, batch), _scalar("")
        )
        if len(lines):  # Before the first row, "[" replaces the comma.
            stream.write(begin)
            stream.write(_data(lines)[len(begin) :])
            begin = b""
    stream.write(b"[]\n" if begin else b"\n]\n")


def _scalar(text: str) -> Any:
    return pa.scalar(text, TEXT)


def _data(lines: pa.Array) -> Any:
    """Return the bytes of all texts in an array, without a copy. The array must not be a slice of another
    array.
    """
    size = pc.sum(pc.binary_length(lines)).as_py() or 0
    return memoryview(lines.buffers()[2])[:size] if size else b""


# --- tables ------------------------------------------------------------------------------------


def parquet(result: Result, stream: BinaryIO) -> None:
    """Write Parquet with zstd compression."""
    import pyarrow.parquet

    schema = _renamed(result)
    with pyarrow.parquet.ParquetWriter(stream, schema, compression="zstd") as writer:
        for group in groups(result.batches):
            writer.write_table(pa.Table.from_batches(group).rename_columns(schema.names))


def groups(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Yield lists of batches. All batches of a list together are large enough for a row group, except perhaps
    those of the last list.
    """
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield held
            held, rows, size = [], 0, 0
    if rows:
        yield held


def arrow(result: Result, stream: BinaryIO) -> None:
    """Write Arrow IPC in the streaming format, which can be written to files and pipes."""
    import pyarrow.ipc

    with pyarrow.ipc.new_stream(stream, result.schema) as writer:
        for batch in result.batches:
            writer.write_batch(batch)


def _renamed(result: Result) -> pa.Schema:
    fields = zip(distinct(result.names), result.schema, strict=True)
    return pa.schema([field.with_name(name) for name, field in fields])


WRITERS: dict[str, Callable[[Result, BinaryIO], None]] = {
    "csv": csv,
    "json": json_array,
    "ndjson": ndjson,
    "parquet": parquet,
    "arrow": arrow,
}


def write(form: str, result: Result, stream: BinaryIO) -> None:
    """Write a result in the format `form`. Raises SegstoreError if the format does not support the type of a
    column.
    """
    try:
        WRITERS[form](result, stream)
    except pa.ArrowNotImplementedError as error:
        raise SegstoreError(f"{form} has no such column: {error}; cast(COLUMN as varchar) is text") from error
