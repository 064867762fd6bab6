"""Finds the Arrow types of the fields of a Protobuf message, and the functions that convert their values.

A field that is not set is null if it has presence (an optional field, a field of a oneof, or a message); if
it has no presence, it has its default. A value of an enum becomes its name, or its number as text if it has
no name. A wrapper message becomes the value that it contains. Timestamps and durations have microseconds,
because their range in nanoseconds exceeds 64 bits. Struct, Value and ListValue become JSON text. If a message
contains a message of its own type, the inner message becomes its encoded bytes.

Nothing is on disk. Functions without state: safe from any thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa
from google.protobuf import json_format

PACKAGE = "google.protobuf."
WRAPPERS = {
    f"{PACKAGE}{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
JSON = {f"{PACKAGE}{name}" for name in ("Struct", "Value", "ListValue")}

Of = Callable[[Any], Any]


class ProtobufConversion(NamedTuple):
    """An Arrow type, and the function that converts a field's values to it. If they stay unchanged, the
    function is None.
    """

    type: pa.DataType
    of: Of | None = None


class ProtobufField(NamedTuple):
    """A field of a message: its name, its Arrow type, and the function `of`, which returns its value for a
    message.
    """

    name: str
    type: pa.DataType
    of: Of


def fields(message: Any, within: tuple[Any, ...] = ()) -> list[ProtobufField]:
    """Return the fields of a message type. `message` is its descriptor; `within` has those of the types that
    contain it.
    """
    return [_field(each, (*within, message)) for each in message.fields]


def is_repeated(field: Any) -> bool:
    """Return whether a field is repeated. `label` is read only in versions of protobuf that do not have
    `is_repeated`, because newer versions warn of it.
    """
    known = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if known is None else known)


def is_map(field: Any) -> bool:
    """Return whether a field is a map."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _field(field: Any, within: tuple[Any, ...]) -> ProtobufField:
    name = field.name
    if is_map(field):
        key, value = (_kind(each, within) for each in field.message_type.fields)
        change = value.of or (lambda value: value)
        pairs = lambda message: [(key, change(each)) for key, each in getattr(message, name).items()]  # noqa: E731
        return ProtobufField(name, pa.map_(key.type, value.type), pairs)
    kind = _kind(field, within)
    if is_repeated(field):
        return ProtobufField(name, pa.list_(kind.type), _items(name, kind.of))
    return ProtobufField(
        name, kind.type, _set(name, kind.of) if field.has_presence else _always(name, kind.of)
    )


def _items(name: str, change: Of | None) -> Of:
    if change is None:
        return lambda message: list(getattr(message, name))
    return lambda message: [change(each) for each in getattr(message, name)]


def _set(name: str, change: Of | None) -> Of:
    if change is None:
        return lambda message: getattr(message, name) if message.HasField(name) else None
    return lambda message: change(getattr(message, name)) if message.HasField(name) else None


def _always(name: str, change: Of | None) -> Of:
    if change is None:
        return lambda message: getattr(message, name)
    return lambda message: change(getattr(message, name))


def _kind(field: Any, within: tuple[Any, ...]) -> ProtobufConversion:
    if field.message_type is not None:
        return _message(field.message_type, within)
    if field.enum_type is not None:
        names = {value.number: value.name for value in reversed(field.enum_type.values)}
        return ProtobufConversion(pa.string(), lambda number: names.get(number) or str(number))
    if field.type in (field.TYPE_BYTES, field.TYPE_STRING):
        return ProtobufConversion(pa.binary() if field.type == field.TYPE_BYTES else pa.string())
    return ProtobufConversion(
        {
            field.CPPTYPE_BOOL: pa.bool_(),
            field.CPPTYPE_DOUBLE: pa.float64(),
            field.CPPTYPE_FLOAT: pa.float32(),
            field.CPPTYPE_INT32: pa.int32(),
            field.CPPTYPE_INT64: pa.int64(),
            field.CPPTYPE_UINT32: pa.uint32(),
            field.CPPTYPE_UINT64: pa.uint64(),
        }[field.cpp_type]
    )


def _message(message: Any, within: tuple[Any, ...]) -> ProtobufConversion:
    name = message.full_name
    if name in WRAPPERS:
        return ProtobufConversion(_kind(message.fields[0], within).type, lambda value: value.value)
    if name == f"{PACKAGE}Timestamp":
        return ProtobufConversion(
            pa.timestamp("us", "UTC"), lambda value: value.seconds * 1_000_000 + value.nanos // 1000
        )
    if name == f"{PACKAGE}Duration":
        return ProtobufConversion(
            pa.duration("us"), lambda value: value.seconds * 1_000_000 + int(value.nanos / 1000)
        )
    if name in JSON:
        return ProtobufConversion(pa.string(), _json)
    if message in within:
        return ProtobufConversion(pa.binary(), lambda value: value.SerializeToString(deterministic=True))
    parts = fields(message, within)
    return ProtobufConversion(
        pa.struct([(each.name, each.type) for each in parts]),
        lambda value: {each.name: each.of(value) for each in parts},
    )


def _json(value: Any) -> str:
    return json.dumps(json_format.MessageToDict(value), ensure_ascii=False)
