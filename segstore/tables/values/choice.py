"""Chooses the decoder for the arguments `values` and `value_schema`. Nothing is on disk. Threads: any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from segstore.errors import InvalidArgumentError, InvalidTypeError, Needing

from .decoding import Decoder
from .function import FunctionDecoder

First = Callable[[], pa.Array]
"""A function that returns the first values of the topic."""


def decoder_of(values: Any, value_schema: Any, first: First) -> Decoder | None:
    """Return the decoder for `values` and `value_schema`; None, which means that values stay bytes, if
    `values` is None. Raises InvalidArgumentError, InvalidTypeError, MissingPackageError.
    """
    if isinstance(values, str):
        if values not in _NAMED:
            raise InvalidArgumentError(f"values={values!r}: {_ALLOWED}")
        return _NAMED[values](value_schema, first)
    if value_schema is not None:
        raise InvalidArgumentError(f"value_schema is for values={', '.join(map(repr, _NAMED))}")
    if isinstance(values, pa.Schema):
        return _json(values, first)
    if values is not None and not callable(values):
        raise InvalidTypeError(f"values={values!r:.80}: {_ALLOWED}")
    return None if values is None else FunctionDecoder(values)


def _json(schema: Any, first: First) -> Decoder:
    from .json import JsonDecoder, inferred

    if schema is None:
        return inferred(first())
    if not isinstance(schema, pa.Schema):
        raise InvalidTypeError(f"value_schema is {type(schema).__name__}: JSON has a pyarrow.Schema, or None")
    return JsonDecoder(schema)


def _avro(schema: Any, first: First) -> Decoder:
    with Needing("fastavro", 'values="avro"'):
        from .avro import AvroDecoder

    if schema is None:
        raise InvalidArgumentError('values="avro" needs value_schema: a schema, or schemas by their ids')
    by_id = callable(schema) or (isinstance(schema, Mapping) and "type" not in schema)
    return AvroDecoder.by_id(schema, first) if by_id else AvroDecoder(schema, first)


def _protobuf(schema: Any, first: First) -> Decoder:
    with Needing("protobuf", 'values="protobuf"', "google"):
        from .protobuf import ProtobufDecoder

    if schema is None:
        raise InvalidArgumentError('values="protobuf" needs value_schema: a message class or descriptor')
    return ProtobufDecoder(schema)


_NAMED: dict[str, Callable[[Any, First], Decoder]] = {"json": _json, "avro": _avro, "protobuf": _protobuf}
_ALLOWED = f"must be None, {', '.join(map(repr, _NAMED))}, a pyarrow.Schema or a callable"
