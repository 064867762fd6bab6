"""Converts columns of a query's result to text, and to JSON.

Bytes are treated as text if they are UTF-8. Nothing is on disk. Threads: any. The module imports pyarrow, so
it is imported only when a query's result is printed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

TEXT = pa.large_string()


def texts(column: pa.Array) -> pa.Array:
    """Return a column as text. Bytes are decoded as UTF-8, and each invalid byte becomes an escape sequence
    such as `\\xff`. Times become ISO 8601. Lists and structs become JSON.
    """
    kind = column.type
    if column.null_count == len(column):
        return pa.nulls(len(column), TEXT)
    if _is_binary(kind):
        return _decoded(column)
    if pa.types.is_timestamp(kind):
        return _times(column)
    if pa.types.is_dictionary(kind):
        return texts(column.dictionary_decode())
    if _is_plain(kind):
        return column.cast(TEXT)
    rows = column.to_pylist(maps_as_pydicts="lossy")
    return pa.array([None if each is None else _text(each) for each in rows], TEXT)


def _is_binary(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind))


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether Arrow can cast a column of this type to text."""
    t = pa.types
    kinds = (t.is_string, t.is_large_string, t.is_boolean, t.is_integer, t.is_floating, t.is_decimal)
    return any(is_kind(kind) for is_kind in (*kinds, t.is_date, t.is_null))


def _decoded(column: pa.Array) -> pa.Array:
    try:
        return column.cast(pa.large_binary()).cast(TEXT)
    except pa.ArrowInvalid:
        escaped = (None if each is None else escaped_text(each) for each in column.to_pylist())
        return pa.array(list(escaped), TEXT)


def escaped_text(data: bytes) -> str:
    """Decode bytes as UTF-8. Each invalid byte becomes an escape sequence such as `\\xff`."""
    return data.decode(errors="backslashreplace")


def _times(column: pa.Array) -> pa.Array:
    """Return times in ISO 8601, such as 2013-01-01T05:00:00Z. If the fraction of a second is 0, it is
    omitted. If the column has no time zone, the Z is omitted.
    """
    zone = column.type.tz
    in_utc = column.cast(pa.timestamp(column.type.unit, "UTC" if zone else None))
    shown = in_utc.cast(pa.string())
    shown = pc.replace_substring_regex(shown, r"^(\S+) ([\d:]+)(\.\d*[1-9])?[.0]*(Z?)$", r"\1T\2\3\4")
    return shown.cast(TEXT)


def _text(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return json.dumps(value_of(value), ensure_ascii=False)
    return str(value_of(value))


# --- JSON --------------------------------------------------------------------------------------


def json_rows(names: Sequence[str], kinds: Sequence[str], batch: pa.RecordBatch) -> pa.Array:
    """Return a JSON object for each row. Bytes that are not UTF-8 are base64, and then the field
    NAME_encoding is "base64", as in the output of `consume`. Values of SQL's type JSON are copied unchanged.
    """
    parts: list[Any] = []
    for name, kind, column in zip(names, kinds, batch.columns, strict=True):
        before = f"{', ' if parts else '{'}{_dumped(name)}: "
        parts += [before, *([_as_it_is(column)] if kind == "JSON" else _json(name, column))]
    return pc.binary_join_element_wise(*map(_operand, [*parts, "}", ""]))


def _as_it_is(column: pa.Array) -> pa.Array:
    """Return a column of JSON texts, with line ends replaced by blanks."""
    return pc.fill_null(pc.replace_substring_regex(column.cast(TEXT), "[\r\n]", " "), "null")


def _operand(part: Any) -> Any:
    return pa.scalar(part, TEXT) if isinstance(part, str) else part


def _json(name: str, column: pa.Array) -> Iterator[pa.Array]:
    """Yield a column with the JSON text of each value. If values may be base64, yield a second column, which
    has the text of the field NAME_encoding, or "".
    """
    kind, t = column.type, pa.types
    if column.null_count == len(column):
        yield pa.repeat(pa.scalar("null", TEXT), len(column))
    elif t.is_dictionary(kind):
        yield from _json(name, column.dictionary_decode())
    elif t.is_floating(kind):
        finite = pc.if_else(pc.is_finite(column), column, pa.scalar(None, kind))
        yield pc.fill_null(finite.cast(TEXT), "null")
    elif t.is_integer(kind) or t.is_boolean(kind) or t.is_decimal(kind):
        yield pc.fill_null(column.cast(TEXT), "null")
    elif (text := _json_text(column)) is not None:
        yield _quoted(text)
    else:
        rows = [members(name, each) for each in column.to_pylist(maps_as_pydicts="lossy")]
        yield pa.array([_dumped(row[name]) for row in rows], TEXT)
        yield pa.array([_encoding(name, row) for row in rows], TEXT)


def _json_text(column: pa.Array) -> pa.Array | None:
    """Return a column as texts for JSON strings that are not quoted yet. Return None if the values must be
    converted one by one.
    """
    kind = column.type
    if _is_binary(kind):
        try:
            return column.cast(pa.large_binary()).cast(TEXT)
        except pa.ArrowInvalid:
            return None
    return texts(column) if _is_plain(kind) or pa.types.is_timestamp(kind) else None


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _encoding(name: str, row: dict[str, object]) -> str:
    found = row.get(f"{name}_encoding")
    return "" if found is None else f", {_dumped(f'{name}_encoding')}: {_dumped(found)}"


def _quoted(column: pa.Array) -> pa.Array:
    """Return texts as JSON strings."""
    if pc.any(pc.match_substring_regex(column, "[\\x00-\\x1f]")).as_py():
        return pa.array([_dumped(each) for each in column.to_pylist()], TEXT)
    for special in "\\", '"':
        column = pc.replace_substring(column, special, f"\\{special}")
    quote = pa.scalar('"', TEXT)
    return pc.fill_null(pc.binary_join_element_wise(quote, column, quote, pa.scalar("", TEXT)), "null")


def members(name: str, value: object) -> dict[str, object]:
    """Return a dict with the field NAME. If the value is or contains bytes that are not UTF-8, the dict has a
    field NAME_encoding, too.
    """
    found = value_of(value)
    if _has_bytes(value) and not _is_text(value):
        return {name: _in_base64(value), f"{name}_encoding": "base64"}
    return {name: found}


def value_of(value: Any) -> Any:
    """Convert a value to one that the module `json` accepts. NaN and infinities become null, bytes and times
    become text, and decimal numbers become int or float.
    """
    if isinstance(value, bytes):
        return escaped_text(value)
    if isinstance(value, dict):
        return _object(value.items())
    if isinstance(value, tuple):  # The value is an interval: (months, days, nanoseconds).
        return _interval(*value)
    if isinstance(value, list):
        return [value_of(each) for each in value]
    if isinstance(value, float):
        return value if value - value == 0 else None
    return _scalar(value)


def _object(fields: Iterable[tuple[Any, Any]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in fields:
        found |= members(str(value_of(name)), value)
    return found


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, (date, time, timedelta)):
        return str(value)
    whole = int(value) if value == int(value) else None
    return float(value) if whole is None else whole


def _interval(months: int, days: int, nanoseconds: int) -> str:
    rest = timedelta(microseconds=nanoseconds // 1000)
    parts = [f"{number} {noun}" for number, noun in ((months, "months"), (days, "days")) if number]
    return " ".join([*parts, str(rest)] if rest or not parts else parts)


def _has_bytes(value: object) -> bool:
    if isinstance(value, list):
        return any(_has_bytes(each) for each in value)
    return isinstance(value, bytes)


def _is_text(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_text(each) for each in value)
    try:
        return not isinstance(value, bytes) or value.decode() is not None
    except UnicodeDecodeError:
        return False


def _in_base64(value: Any) -> Any:
    if isinstance(value, list):
        return [_in_base64(each) for each in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value_of(value)
