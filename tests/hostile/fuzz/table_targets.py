"""Columns that are filled from record batches: as `decode` has them, or refused as it refuses them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzz import batches, messages
from fuzz.target import Target
from segstore.errors import CorruptRecordError
from segstore.integers import INT64_MAX
from segstore.records import Records, decode, scan
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
        assert filled == wanted
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


TARGETS = {
    "table": Target(table, batches.seeds, batches.MUTATORS, batches.with_crcs),
    "table of messages": Target(table, messages.seeds, messages.MUTATORS, messages.with_crcs),
}
