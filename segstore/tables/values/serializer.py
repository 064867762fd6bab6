"""`RowSerializer`: encodes rows as values. The decoder of the same name, such as "avro", decodes them.

Nothing is on disk. Threads: any.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from segstore.errors import InvalidArgumentError, InvalidTypeError, Needing, SerializationError

from .confluent import prefix

if TYPE_CHECKING:
    import pyarrow

Encode = Callable[[Any], bytes]


class RowSerializer:
    """A `value_serializer` for a Producer: it encodes a row as bytes, and returns None for None. A call
    raises SerializationError if the row can't be encoded.
    """

    def __init__(self, name: str, encode: Encode) -> None:
        self._name, self._encode = name, encode

    def __repr__(self) -> str:
        return f"<serializer of {self._name}>"

    def __call__(self, row: Any) -> bytes | None:
        if row is None:
            return None
        try:
            return self._encode(row)
        except SerializationError:
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise SerializationError(f"{row!r:.80} can't be serialized as {self._name}: {said}") from error

    def column(self, rows: Any) -> pyarrow.Array:
        """Encode many rows, and return the values as a column for `append_batch`. `rows` is a list, a pyarrow
        Array or a ChunkedArray of rows, or a table as for `append_table`. Raises SerializationError,
        InvalidTypeError.
        """
        with Needing("pyarrow", "a column of values"):
            import pyarrow
        return pyarrow.array([self(row) for row in _rows(rows)], pyarrow.binary())


def _rows(given: Any) -> Iterable[Any]:
    if isinstance(given, str | bytes | Mapping):
        raise InvalidTypeError(f"rows is {type(given).__name__}: allowed is a list of rows, or a table")
    # A table has this attribute. An iteration over a table would yield columns or names, not rows.
    if hasattr(given, "columns"):
        from segstore.records.arrow_table import read_table

        given = read_table(given)
    rows: Iterable[Any] = given.to_pylist() if hasattr(given, "to_pylist") else given
    return rows


def serializer(name: str, value_schema: Any = None, *, schema_id: int | None = None) -> RowSerializer:
    """Return a serializer of rows. `name` is "json", "avro" or "protobuf". `value_schema` is an Avro schema,
    or a Protobuf message class or descriptor; None for JSON. Rows are dicts, as in a table's `to_pylist`; if
    the Avro schema is not that of a record, or for JSON, they may be other values. If `schema_id` is not
    None, each value begins with Confluent's prefix, which has this id.

    Raises InvalidArgumentError, MissingPackageError.
    """
    if name not in _NAMED:
        raise InvalidArgumentError(f"serializer {name!r}: must be one of {', '.join(_NAMED)}")
    if schema_id is not None and (not isinstance(schema_id, int) or not 0 < schema_id < 1 << 31):
        raise InvalidArgumentError(f"schema_id={schema_id!r}: must be an int from 1 to 2147483647")
    before = b"" if schema_id is None else prefix(schema_id)
    return RowSerializer(name, _NAMED[name](value_schema, before))


def _json(schema: Any, before: bytes) -> Encode:
    if schema is not None:
        raise InvalidArgumentError("JSON is written without value_schema")
    made = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain)
    return lambda row: before + made.encode(row).encode()


def _plain(value: Any) -> Any:
    """Convert bytes, dates, times, decimals and UUIDs to text. Raises TypeError for other types."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no type of JSON")


def _avro(schema: Any, before: bytes) -> Encode:
    what = "a serializer of Avro"
    with Needing("pyarrow", what), Needing("fastavro", what):
        from .avro_writer import encoder

    return encoder(schema, before)


def _protobuf(schema: Any, before: bytes) -> Encode:
    what = "a serializer of Protobuf"
    with Needing("pyarrow", what), Needing("protobuf", what, "google"):
        from .protobuf_writer import encoder

    return encoder(schema, before)


_NAMED: dict[str, Callable[[Any, bytes], Encode]] = {"json": _json, "avro": _avro, "protobuf": _protobuf}
