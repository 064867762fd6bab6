"""Which records are too large, told before anything is written; nothing on disk.

Functions without state: safe from any thread.
"""

from __future__ import annotations

from segstore.errors import RecordTooLargeError
from segstore.records.codecs import MAX_PLAIN, compress
from segstore.records.columns import Columns
from segstore.records.encode import Run, batch_cap, largest_record
from segstore.records.encoded import CHUNK_BYTES, PLAIN
from segstore.records.header import HEADER_SIZE

_NUMBERS = 40
"""Bytes of the longest varints of a record together, its headers' aside."""


def check_sizes(
    columns: Columns, codec: int = 0, level: int | None = None, max_bytes: int = MAX_PLAIN
) -> None:
    """RecordTooLargeError (index, size, limit) for a record whose batch would be above `max_bytes`.

    Exact: a record that might be too large is encoded alone, and compressed, to see.
    """
    doubtful = batch_cap(codec, MAX_PLAIN, max_bytes)
    if _bound(columns, doubtful) <= doubtful:
        return
    ranges = [(0, columns.n)]
    while ranges:
        first, last = ranges.pop()
        if first >= last:
            continue
        size, i = largest_record(columns, first, last)
        if size + HEADER_SIZE > doubtful:
            _check_one(columns, i, codec, level, max_bytes)
            ranges += [(first, i), (i + 1, last)]


def _bound(columns: Columns, enough: int) -> int:
    """Bytes that no batch of one record is above, by the longest key and value and all headers at once."""
    size = columns.keys.longest(enough >> 2) + columns.values.longest(enough >> 2) + HEADER_SIZE + _NUMBERS
    if columns.headers:
        c = columns.headers.c
        size += c.names.data_len + c.values.data_len + 10 * c.names.n
    return size


def _check_one(columns: Columns, i: int, codec: int, level: int | None, max_bytes: int) -> None:
    run = Run(columns, codec, 1, PLAIN)
    run.first = i
    one = run.next_chunk(CHUNK_BYTES, 1)
    size, allowed = int(one.batches["size"][0]), max_bytes
    if size > MAX_PLAIN:
        allowed = MAX_PLAIN
    elif codec:
        at = int(one.batches["position"][0])
        size = HEADER_SIZE + len(compress(codec, one.data[at + HEADER_SIZE : at + size], level))
    one.release()
    if size > allowed:
        raise RecordTooLargeError(f"record {i} makes a batch of {size:,} bytes: allowed are {allowed:,}")
