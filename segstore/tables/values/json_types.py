"""Arrow types for JSON values: the types that pyarrow can read, and types that are inferred from values.

Nothing is on disk. Functions without state: safe from any thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.json as pj

from segstore.errors import InvalidArgumentError
from segstore.integers import INT64_MAX

DEEPEST = 64
"""The largest number of levels in an inferred type. Values with more levels are ignored."""


def read_type(kind: pa.DataType) -> pa.DataType:
    """Return the type as which pyarrow reads a value before the value is cast to `kind`. It differs from
    `kind` for dates and dictionaries: a date is read as a string.
    """
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_dictionary(kind):
        return read_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(read_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(read_type(kind.value_type)))
    return kind


def checked(schema: pa.Schema) -> pa.Schema:
    """Return `schema` if pyarrow can read each of its types from JSON. Raises InvalidArgumentError."""
    for field in schema:
        try:
            pj.read_json(
                pa.BufferReader(b"{}\n"),
                parse_options=pj.ParseOptions(
                    explicit_schema=pa.schema([(field.name, read_type(field.type))])
                ),
            )
        except pa.ArrowNotImplementedError as error:
            raise InvalidArgumentError(
                f"value_schema has {field.name}: {field.type}, which pyarrow reads from no JSON: {error}"
            ) from error
    return schema


def has_struct(kind: pa.DataType) -> bool:
    """Return whether a type is a struct, or contains one."""
    return pa.types.is_struct(kind) or any(has_struct(kind.field(i).type) for i in range(kind.num_fields))


# --- what values have a type --------------------------------------------------------------------

WHOLE = {
    pa.int8(): 7,
    pa.int16(): 15,
    pa.int32(): 31,
    pa.int64(): 63,
    pa.uint8(): 8,
    pa.uint16(): 16,
    pa.uint32(): 32,
    pa.uint64(): 64,
}
"""The number of bits of each integer type, without the sign."""


def is_good(text: bytes, kind: pa.DataType) -> bool:
    """Return whether a text is JSON and its value fits a type. pyarrow may decide otherwise: for example, it
    may refuse a number in a field that is no column.
    """
    try:
        return _is_of(json.loads(text.decode(), object_pairs_hook=_once), kind)
    except (ValueError, RecursionError):
        return False


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a field is there twice")
    return made


def _is_of(value: Any, kind: pa.DataType) -> bool:
    if value is None:
        return True
    if pa.types.is_struct(kind):
        return isinstance(value, dict) and all(_is_of(value.get(each.name), each.type) for each in kind)
    if pa.types.is_list(kind):
        return isinstance(value, list) and all(_is_of(each, kind.value_type) for each in value)
    if kind in WHOLE:
        least = 0 if pa.types.is_unsigned_integer(kind) else -(1 << WHOLE[kind])
        return type(value) is int and least <= value < 1 << WHOLE[kind]
    if pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return (type(value) is bool) == pa.types.is_boolean(kind) and not isinstance(value, str | list | dict)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return isinstance(value, str) and _is_time(value)
    return not isinstance(value, list | dict) and not pa.types.is_null(kind)


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return False
    return True


# --- inferred -----------------------------------------------------------------------------------


class ConflictError(ValueError):
    """Two values have no common type, or a value has too many levels."""


def type_of(value: Any, depth: int = 0) -> pa.DataType:
    """Return the type of a value that `json.loads` has returned. Raises ConflictError if the value has too
    many levels, or if the items of a list have no common type.
    """
    if depth > DEEPEST:
        raise ConflictError(f"it nests deeper than {DEEPEST} levels")
    if isinstance(value, dict):
        return pa.struct([(name, type_of(each, depth + 1)) for name, each in value.items()])
    if isinstance(value, list):
        return pa.list_(common(type_of(each, depth + 1) for each in value))
    if isinstance(value, int) and not isinstance(value, bool):
        return pa.int64() if -INT64_MAX - 1 <= value <= INT64_MAX else pa.float64()
    return {type(None): pa.null(), bool: pa.bool_(), float: pa.float64(), str: pa.string()}[type(value)]


def common(kinds: Iterable[pa.DataType]) -> pa.DataType:
    """Return the common type of several types; Arrow's type null if there are none. Raises ConflictError."""
    made = pa.null()
    for kind in kinds:
        made = merged(made, kind)
    return made


def merged(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the common type of two types. Raises ConflictError."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(merged(one.value_type, other.value_type))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = merged(fields.get(field.name, pa.null()), field.type)
        return pa.struct(list(fields.items()))
    raise ConflictError(f"{one} and {other}")
