"""Columns that are filled from record batches: as `decode` has them, or refused as it refuses them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzz import batches, messages
from fuzz.batch_targets import _in_memory
from fuzz.target import Target
from segstore._native import ffi, lib
from segstore.errors import CorruptRecordError
from segstore.integers import INT64_MAX
from segstore.records import CODEC_MASK, CONTROL_FLAG, TRANSACTIONAL_FLAG, Records, decode, scan
from segstore.records.lazy_columns import ByteColumn
from segstore.records.table import RecordTable, Strings

_ALL = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")
_FRONT = ("offset", "timestamp")


def table(data: bytes) -> str:
    """Of damage the columns of offsets alone may know less; what they have is the same."""
    found, _ = scan(data, 7, check_crcs=False)
    if not len(found):
        return "none"
    wanted = _decoded(data, found)
    filled, front = _filled(data, found, _ALL), _filled(data, found, _FRONT)
    if isinstance(wanted, str):
        assert filled == _first_fault(data, found)
        return f"refused, {isinstance(front, str)}"
    assert isinstance(filled, RecordTable), filled
    assert isinstance(front, RecordTable), front
    _compare(filled, wanted)
    _compare(front, wanted)
    if len(wanted):
        first, end = int(wanted.offsets[len(wanted) // 3]), int(wanted.offsets[-1 - len(wanted) // 3]) + 1
        inside = wanted.take((wanted.offsets >= first) & (wanted.offsets < end))
        for columns in (_ALL, _FRONT, ()):
            part = _filled(data, found, columns, first, end)
            assert isinstance(part, RecordTable), part
            _compare(part, inside)
    return f"{min(len(wanted), 3)} records"


def _decoded(data: bytes, found: Any) -> Records | str:
    try:
        return decode(data, found, "log", 7)
    except CorruptRecordError as error:
        return str(error)


def _first_fault(data: bytes, found: Any) -> str:
    """What is said of the first batch that can't be decoded: a table has the records before it."""
    told = (_decoded(data, found[: n + 1]) for n in range(len(found)))
    return next(each for each in told if isinstance(each, str))


def _filled(
    data: bytes, found: Any, columns: tuple[str, ...], first: int = 0, end: int = INT64_MAX
) -> RecordTable | str:
    made = RecordTable(columns)
    try:
        assert made.add(data, found, "log", 7, first, end)
    except CorruptRecordError as error:
        assert len(made) == len(made.arrays.get("offset", range(len(made)))[: len(made)])
        return str(error)
    return made


def _compare(made: RecordTable, wanted: Records) -> None:
    n = len(made)
    assert n == len(wanted)
    for name, column in (("offset", wanted.offsets), ("timestamp", wanted.timestamps)):
        assert name not in made.arrays or np.array_equal(made.arrays[name][:n], column)
    if "timestamp_type" in made.arrays:
        assert np.array_equal(made.arrays["timestamp_type"][:n], wanted.timestamp_types)
    for name, strings in (("key", wanted.keys), ("value", wanted.values)):
        if name in made.strings:
            assert _strings(made.strings[name], n) == strings.tolist()
    if "headers_at" in made.arrays:
        parts = [[[]] * rows if part is None else part.tolist() for rows, part in made.headers]
        assert [each for part in parts for each in part] == wanted.headers.tolist()


def _strings(column: Strings, n: int) -> list[bytes | None]:
    ends = column.offsets[: n + 1].astype(np.int64)
    valid = np.unpackbits(column.validity, bitorder="little")[:n].astype(bool)
    assert int((~valid).sum()) == column.nulls
    lengths = np.where(valid, np.diff(ends), -1)
    return ByteColumn(column.data[: column.used].tobytes(), ends[:-1], lengths).tolist()


def table_read(data: bytes) -> str:
    """What one call takes of a file is what a scan of the same bytes finds, up to some batch; windows and
    columns are exactly as large as they may be used, so that the sanitizer sees a step beyond them.
    """
    found = 0
    with _in_memory(data) as handle:
        for room in (70, 300, max(len(data), 1)):
            for refused in (0, TRANSACTIONAL_FLAG):
                found += _read(handle, data, room, refused) > 0
    return str(found)


def _read(handle: Any, data: bytes, room: int, refused: int) -> int:
    """Return how many bytes were taken."""
    window, made = ffi.new(f"uint8_t[{room}]"), RecordTable(_ALL[:-1])
    r = ffi.new("seg_table_read *", (0, INT64_MAX, INT64_MAX, 0, 0, 0, 0, 0, 1, refused))
    made.read(0, r, lambda table, r: lib.seg_read_table(handle.fd, len(data), window, room, table, r))
    assert 0 <= r.position <= len(data)
    batches = scan(data[: r.position])[0]
    assert int(batches["size"].sum()) == r.position
    plain = batches[(batches["attributes"] & CONTROL_FLAG) == 0]
    assert not (plain["attributes"] & (CODEC_MASK | refused)).any()
    wanted = decode(data, plain, "log")
    _compare(made, wanted)
    return int(r.position)


TARGETS = {
    "table read": Target(table_read, batches.made, batches.MUTATORS, batches.with_crcs),
    "table read of messages": Target(table_read, messages.seeds, messages.MUTATORS, messages.with_crcs),
    "table": Target(table, batches.seeds, batches.MUTATORS, batches.with_crcs),
    "table of messages": Target(table, messages.seeds, messages.MUTATORS, messages.with_crcs),
}
