"""Reads the text input of `produce` (lines, CSV, NDJSON), and returns the records as columns. Threads:
one.
"""

from __future__ import annotations

import base64
import binascii
import csv
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO

from segstore.cli.options import parse_time
from segstore.errors import InvalidArgumentError

BLOCK = 1 << 20


class InputError(InvalidArgumentError):
    """Raised if input is not a valid record. The message names the line, row or column."""


@dataclass(frozen=True)
class InputOptions:
    """The names of the fields or columns that have the key, the value and the timestamp of a record.
    `separator` is the text between the key and the value in a line. If `plain`, a whole JSON object is the
    value of a record.
    """

    key_field: str | None = None
    value_field: str | None = None
    timestamp_field: str | None = None
    separator: str | None = None
    plain: bool = False


@dataclass
class Chunk:
    """Records as columns. A column is a list, or an Arrow array if the input has Arrow columns. A column is
    None if no record has a value for it.

    Timestamps are ms since the epoch. The timestamp None means the current time. If `partitions` is None, the
    keys determine the partitions.
    """

    values: Any
    keys: Any = None
    timestamps: list[int | None] | Any = None
    headers: list[list[tuple[str, bytes | None]]] | Any = None
    partitions: list[int | None] | None = None

    def __len__(self) -> int:
        return len(self.values)


def line_blocks(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Yield lists of lines, without line ends. If the input is a pipe, a list has the lines that have
    arrived, and is yielded without waiting for further lines.
    """
    rest = b""
    read = getattr(stream, "read1", stream.read)
    while block := read(BLOCK):
        *lines, rest = (rest + block).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


def numbered(blocks: Iterable[list[bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Yield lists of (line number, line). The first line has the number 1. Blank lines are left out."""
    done = 0
    for lines in blocks:
        yield [(number, line) for number, line in enumerate(lines, done + 1) if line.strip()]
        done += len(lines)


# --- input rows --------------------------------------------------------------------------------

# The functions below read lines and CSV.

ROWS = 5000
LARGEST = 1 << 30
"""The size in bytes of the largest CSV field. This size is above the largest size of a record, so that a
record that is too large is refused by the log, not by the CSV reader.
"""


def lines(stream: BinaryIO, options: InputOptions) -> Iterator[Chunk]:
    """Yield the records of the lines. If `options` has no separator, a line is a value. If `options` has a
    separator, the text before its first occurrence in a line is the key, and the text after it is the value.
    Raises InputError, which names the line, if a line lacks the separator.
    """
    separator, done = (options.separator or "").encode(), 0
    for block in line_blocks(stream):
        if not separator:
            yield Chunk(block)
            continue
        parts = [line.partition(separator) for line in block]
        for number, (line, found, _) in enumerate(parts, done + 1):
            if not found:
                raise InputError(f"line {number}: no key separator {options.separator!r}: {line[:80]!r}")
        done += len(block)
        yield Chunk([value for _, _, value in parts], [key for key, _, _ in parts])


def csv_rows(stream: BinaryIO, options: InputOptions) -> Iterator[Chunk]:
    """Yield the records of the rows. A record's value is one column of the row, or the whole row as a JSON
    object whose names are those in the header row.
    """
    with io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
        csv.field_size_limit(LARGEST)
        reader = csv.reader(text)
        wanted = (options.key_field, options.value_field, options.timestamp_field)
        try:
            names = next(reader, [])
            at = [None if name is None else _column(names, name) for name in wanted]
            while rows := list(islice(reader, ROWS)):
                yield _rows_chunk(names, rows, at, reader.line_num)
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"line {reader.line_num}: no CSV in UTF-8: {error}") from error


def _column(names: list[str], name: str) -> int:
    if name not in names:
        raise InputError(f"no column {name!r}; there are: {', '.join(names) or 'none'}")
    return names.index(name)


def _rows_chunk(names: list[str], rows: list[list[str]], at: list[int | None], line: int) -> Chunk:
    rows = [row for row in rows if row]
    for row in rows:
        if len(row) != len(names):
            raise InputError(
                f"up to line {line}: a row of {len(row)} columns, but {len(names)} names: {row!r:.80}"
            )
    key, value, stamp = at
    if value is None:
        values = [json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False).encode() for row in rows]
    else:
        values = [row[value].encode() for row in rows]
    try:
        stamps = None if stamp is None else [parse_time(row[stamp]) for row in rows]
    except ValueError as error:
        raise InputError(f"up to line {line}: no timestamp: {error}") from error
    return Chunk(values, None if key is None else [row[key].encode() for row in rows], stamps)


# --- input json --------------------------------------------------------------------------------

# The reader of NDJSON. Either an object has the key and the value of a record, as in the output of `consume`,
# or the object itself is the value.

FIELDS = {
    "key",
    "value",
    "headers",
    "timestamp",
    "partition",
    "key_encoding",
    "value_encoding",
    "topic",
    "timestamp_type",
    "offset",
}


def ndjson(stream: BinaryIO, options: InputOptions) -> Iterator[Chunk]:
    """Yield the records of the objects. Raises InputError, which names the line."""
    plain = options.plain or options.key_field or options.timestamp_field or options.value_field
    for block in numbered(line_blocks(stream)):
        chunk = Chunk([], [], [], [], [])
        for number, line in block:
            try:
                fields = json.loads(line)
                if not isinstance(fields, dict):
                    raise ValueError("no JSON object")
                _add_plain(chunk, line, fields, options) if plain else _add_record(chunk, fields)
            except (ValueError, TypeError) as error:
                raise InputError(f"line {number}: {error}: {line[:80]!r}") from error
        yield chunk


def _add_plain(chunk: Chunk, line: bytes, fields: dict[str, Any], options: InputOptions) -> None:
    key, stamp = options.key_field, options.timestamp_field
    chunk.values.append(line if options.value_field is None else as_bytes(_get(fields, options.value_field)))
    chunk.keys.append(None if key is None else as_bytes(_get(fields, key)))
    chunk.timestamps.append(None if stamp is None else parse_time(_get(fields, stamp)))
    _add_rest(chunk, [], None)


def _get(fields: dict[str, Any], name: str) -> Any:
    if name not in fields:
        raise ValueError(f"no field {name!r}, there are {', '.join(fields)}")
    return fields[name]


def _add_record(chunk: Chunk, fields: dict[str, Any]) -> None:
    unknown = sorted(fields.keys() - FIELDS)
    if unknown or not fields.keys() & {"key", "value"}:
        raise ValueError(
            (f"unknown field {unknown[0]!r}" if unknown else "neither key nor value")
            + "; to take whole objects as values say --plain, --key-field or --timestamp-field"
        )
    stamp, partition = fields.get("timestamp"), fields.get("partition")
    if partition is not None and type(partition) is not int:
        raise ValueError(f"partition {partition!r} is no integer")
    chunk.values.append(as_bytes(fields.get("value"), fields.get("value_encoding")))
    chunk.keys.append(as_bytes(fields.get("key"), fields.get("key_encoding")))
    chunk.timestamps.append(None if stamp is None else parse_time(stamp))
    _add_rest(chunk, _headers(fields.get("headers") or []), partition)


def _add_rest(chunk: Chunk, headers: list[tuple[str, bytes | None]], partition: int | None) -> None:
    assert chunk.partitions is not None
    chunk.headers.append(headers)
    chunk.partitions.append(partition)


def _headers(headers: Any) -> list[tuple[str, bytes | None]]:
    pairs = headers.items() if isinstance(headers, dict) else headers
    found = []
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) not in (2, 3) or not isinstance(pair[0], str):
            raise ValueError('headers must be {"name": "value"} or [["name", "value"]]')
        found.append((pair[0], as_bytes(*pair[1:])))
    return found


def as_bytes(value: Any, encoding: str | None = None) -> bytes | None:
    """Return the bytes of a JSON value. Text becomes UTF-8, and null becomes None. Any other value becomes
    JSON. If `encoding` is "base64", the text is decoded from base64. Raises ValueError.
    """
    if value is None:
        return None
    if encoding is None:
        return value.encode() if isinstance(value, str) else json.dumps(value, ensure_ascii=False).encode()
    if encoding != "base64":
        raise ValueError(f"encoding {encoding!r} is unknown: the only one is base64")
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(f"no base64: {error}") from error
