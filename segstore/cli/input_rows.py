"""Lines, and rows of CSV. On disk: nothing of its own. Threads: one."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

from segstore.cli.input_chunk import Chunk, InputError, InputOptions, line_blocks
from segstore.cli.options import parse_time

ROWS = 5000
LARGEST = 1 << 30
"""Bytes of a CSV field; the log's own limits come below that."""


def lines(stream: BinaryIO, options: InputOptions) -> Iterator[Chunk]:
    """A record a line; with a separator what stands before its first occurrence is the key."""
    separator = (options.separator or "").encode()
    for block in line_blocks(stream):
        if not separator:
            yield Chunk(block)
            continue
        parts = [line.partition(separator) for line in block]
        yield Chunk(
            [value if found else key for key, found, value in parts],
            [key if found else None for key, found, _ in parts],
        )


def csv_rows(stream: BinaryIO, options: InputOptions) -> Iterator[Chunk]:
    """A record a row: JSON of it by the header row's names, or one column."""
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
