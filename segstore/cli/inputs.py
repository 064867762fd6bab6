"""Reads the input of `produce` (lines, NDJSON, CSV, Parquet, Arrow IPC), some thousand records at a time, and
returns the records as columns.

On disk: the input that the user names is read. Threads: one.
"""

from __future__ import annotations

import base64
import datetime
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from segstore.cli import input_text
from segstore.cli.input_text import Chunk, InputError, InputOptions, as_bytes
from segstore.errors import Needing

# --- input arrow -------------------------------------------------------------------------------

# The readers of Parquet and Arrow IPC. The input has the columns key, value, timestamp, headers and
# partition, or each row becomes a value in JSON.

ROWS = 50_000
_FILE_MAGIC = b"ARROW1"


def parquet(stream: BinaryIO, options: InputOptions) -> Iterator[Chunk]:
    """Yield the records of a Parquet file. The input must be a file, not a pipe. Raises InputError if the
    input is not Parquet, or lacks a column.
    """
    pyarrow = _pyarrow("Parquet")
    if not stream.seekable():
        raise InputError("Parquet can't be read from a pipe: give the file's name")
    try:
        file = pyarrow.parquet.ParquetFile(stream)
        yield from _chunks(file.schema_arrow.names, file.iter_batches(ROWS), options)
    except pyarrow.ArrowException as error:
        raise InputError(f"no Parquet: {error}") from error


def arrow(stream: BinaryIO, options: InputOptions) -> Iterator[Chunk]:
    """Yield the records of Arrow IPC in the streaming or the file format. Input in the file format must be a
    file, not a pipe. Raises InputError if the input is not Arrow IPC, or lacks a column.
    """
    pyarrow = _pyarrow("Arrow IPC")
    try:
        if stream.seekable() and stream.read(len(_FILE_MAGIC)) == _FILE_MAGIC:
            file = pyarrow.ipc.open_file(stream)
            batches = (file.get_batch(i) for i in range(file.num_record_batches))
            yield from _chunks(file.schema.names, batches, options)
        else:
            if stream.seekable():
                stream.seek(0)
            reader = pyarrow.ipc.open_stream(stream)
            yield from _chunks(reader.schema.names, reader, options)
    except pyarrow.ArrowException as error:
        raise InputError(f"no Arrow IPC: {error}") from error


def _pyarrow(what: str) -> Any:
    with Needing("pyarrow", what):
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    return pyarrow


def _chunks(names: list[str], batches: Iterable[Any], options: InputOptions) -> Iterator[Chunk]:
    columns = _columns(names, options)
    for batch in batches:
        yield _chunk(batch, columns)


def _columns(names: list[str], options: InputOptions) -> dict[str, str | None]:
    given = {"key": options.key_field, "value": options.value_field, "timestamp": options.timestamp_field}
    for name in given.values():
        if name is not None and name not in names:
            raise InputError(f"no column {name!r}; there are: {', '.join(names)}")
    ours = "value" in names and not any(given.values()) and not options.plain
    return {
        part: given.get(part) or (part if ours and part in names else None)
        for part in ("key", "value", "timestamp", "headers", "partition")
    }


def _chunk(batch: Any, columns: dict[str, str | None]) -> Chunk:
    key, value, stamp, headers, partition = (
        None if name is None else batch.column(name) for name in columns.values()
    )
    if value is None:
        values: Any = [
            json.dumps(row, default=_text, ensure_ascii=False).encode() for row in batch.to_pylist()
        ]
    else:
        values = _binary(value)
    return Chunk(
        values,
        None if key is None else _binary(key),
        None if stamp is None else _milliseconds(stamp),
        None if headers is None else _headers(headers),
        None if partition is None else partition.to_pylist(),
    )


def _binary(column: Any) -> Any:
    """If a column is binary or text, return it unchanged. If the column has another type, return its values
    as JSON.
    """
    import pyarrow.types as types

    kinds = (types.is_binary, types.is_large_binary, types.is_string, types.is_large_string)
    return column if any(kind(column.type) for kind in kinds) else [as_bytes(v) for v in column.to_pylist()]


def _milliseconds(column: Any) -> list[int | None]:
    import pyarrow

    if pyarrow.types.is_string(column.type) or pyarrow.types.is_date(column.type):
        column = column.cast(pyarrow.timestamp("ms"))
    if pyarrow.types.is_timestamp(column.type):
        column = column.cast(pyarrow.timestamp("ms", column.type.tz), safe=False)
    stamps: list[int | None] = column.cast(pyarrow.int64()).to_pylist()
    return stamps


def _headers(column: Any) -> Any:
    """Return the column of headers, cast to the type that `export` writes. Raises InputError if the cast
    fails.
    """
    import pyarrow

    from segstore.records.arrow import HEADER_TYPE

    try:
        return column.cast(HEADER_TYPE)
    except pyarrow.ArrowException as error:
        raise InputError(f"column headers is {column.type}, must be {HEADER_TYPE}: {error}") from error


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, (datetime.date, datetime.time)) else str(value)


# --- inputs ------------------------------------------------------------

FORMATS: dict[str, Callable[[BinaryIO, InputOptions], Iterator[Chunk]]] = {
    "lines": input_text.lines,
    "ndjson": input_text.ndjson,
    "csv": input_text.csv_rows,
    "parquet": parquet,
    "arrow": arrow,
}
SUFFIXES = {
    **dict.fromkeys((".ndjson", ".jsonl", ".json"), "ndjson"),
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), "arrow"),
    ".csv": "csv",
    ".parquet": "parquet",
}


@dataclass(frozen=True)
class Input:
    """An open input. `size` is its size in bytes, None if the input is not a regular file."""

    stream: BinaryIO
    name: str
    size: int | None

    def format(self, wanted: str) -> str:
        """Return `wanted`, the name of a format. If `wanted` is "auto", return the format that the file's
        suffix means, or "lines" if the suffix means none.
        """
        return wanted if wanted != "auto" else SUFFIXES.get(os.path.splitext(self.name)[1].lower(), "lines")

    def chunks(self, wanted: str, options: InputOptions) -> Iterator[Chunk]:
        """Yield the records of the input. Raises InputError, which names the line or column."""
        return FORMATS[self.format(wanted)](self.stream, options)

    def position(self) -> int:
        """Return the number of bytes that were read. Return 0 if the input is not a regular file."""
        return 0 if self.size is None else self.stream.tell()


def of_stream(stream: Any) -> Input:
    """Return an `Input` for a file that click has opened, or for standard input ("-")."""
    name = str(getattr(stream, "name", "-"))
    regular = name not in ("-", "<stdin>") and os.path.isfile(name)
    return Input(stream, name, os.path.getsize(name) if regular else None)
