"""Encodes rows as Protobuf messages. Nothing is on disk. Functions without state: safe from any thread.

A row is a message, or a dict with the values that `ProtobufDecoder` would return. A field that is None or
absent in the dict is not set.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from segstore.errors import SerializationError

from .confluent import path_bytes
from .protobuf import message_class
from .protobuf_types import JSON, PACKAGE, WRAPPERS, is_map, is_repeated

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MICROSECOND = timedelta(microseconds=1)


def encoder(schema: Any, before: bytes) -> Callable[[Any], bytes]:
    """Return a function that encodes a row. If `before` is not empty, the result begins with these bytes and
    the path of the message's type. Raises InvalidArgumentError.
    """
    kind = message_class(schema)
    head = before + path_bytes(_path(kind.DESCRIPTOR)) if before else b""

    def encode(row: Any) -> bytes:
        message = kind()
        _fill(message, row)
        return head + bytes(message.SerializeToString(deterministic=True))

    return encode


def _path(message: Any) -> list[int]:
    """Return the path of a message type: the index of its outermost enclosing type in the file, and so on
    inwards to its own index.
    """
    outer = message.containing_type
    among = message.file.message_types_by_name.values() if outer is None else outer.nested_types
    at = [each.full_name for each in among].index(message.full_name)
    return [*([] if outer is None else _path(outer)), at]


def _fill(message: Any, row: Any) -> None:
    """Set the fields of a message to the values of a row. Raises SerializationError for an unknown field."""
    name = message.DESCRIPTOR.full_name
    if isinstance(row, Message) and row.DESCRIPTOR.full_name == name:
        row = row.SerializeToString()
    elif name in _FILLED:
        _FILLED[name](message, row)
        return
    # Bytes are an encoded message, for example one inside a message of the same type.
    if isinstance(row, bytes):
        message.MergeFromString(row)
        return
    for field, value in dict(row).items():
        known = message.DESCRIPTOR.fields_by_name.get(field)
        if known is None:
            raise SerializationError(f"{name} has no field {field!r}: it has {_names(message)}")
        if value is not None:
            _set(message, known, value)
    if isinstance(row, Mapping) and not row:
        message.SetInParent()


def _names(message: Any) -> str:
    return ", ".join(message.DESCRIPTOR.fields_by_name)


def _set(message: Any, field: Any, value: Any) -> None:
    if is_map(field):
        _set_map(getattr(message, field.name), field.message_type.fields_by_name["value"], value)
    elif field.message_type is not None:
        for each in value if is_repeated(field) else [value]:
            part = getattr(message, field.name)
            part = part.add() if is_repeated(field) else part
            part.SetInParent()
            _fill(part, each)
    elif is_repeated(field):
        getattr(message, field.name).extend(_scalar(field, each) for each in value)
    else:
        setattr(message, field.name, _scalar(field, value))


def _set_map(there: Any, field: Any, value: Any) -> None:
    for key, each in dict(value).items():
        if field.message_type is not None:
            _fill(there[key], each)
        else:
            there[key] = _scalar(field, each)


def _scalar(field: Any, value: Any) -> Any:
    """Return the value for a field. If the field is an enum, a name, or a number as text, becomes an int."""
    if field.enum_type is None or not isinstance(value, str):
        return value
    known = field.enum_type.values_by_name.get(value)
    return int(value) if known is None else known.number


def _fill_timestamp(message: Any, value: Any) -> None:
    _fill_duration(message, value - EPOCH if isinstance(value, datetime) else value, seconds_down=True)


def _fill_duration(message: Any, value: Any, seconds_down: bool = False) -> None:
    micros = value // MICROSECOND if isinstance(value, timedelta) else int(value)
    seconds, rest = divmod(micros, 1_000_000)
    # In a Duration, seconds and nanos must have the same sign.
    if rest and seconds < 0 and not seconds_down:
        seconds, rest = seconds + 1, rest - 1_000_000
    message.seconds, message.nanos = seconds, rest * 1000


def _fill_wrapper(message: Any, value: Any) -> None:
    message.value = value


def _fill_json(message: Any, value: Any) -> None:
    json_format.ParseDict(json.loads(value) if isinstance(value, str) else value, message)


_FILLED: dict[str, Callable[[Any, Any], None]] = {
    f"{PACKAGE}Timestamp": _fill_timestamp,
    f"{PACKAGE}Duration": _fill_duration,
    **dict.fromkeys(WRAPPERS, _fill_wrapper),
    **dict.fromkeys(JSON, _fill_json),
}
