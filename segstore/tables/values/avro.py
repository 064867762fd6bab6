"""`AvroDecoder`: decodes Avro values to columns, by fastavro.

If there are schemas by id, each value must have Confluent's prefix, which is a byte 0 and an id. If there is
only one schema, the topic's first values decide whether values have the prefix. They have it if more of the
first values can be decoded after a prefix than can be decoded from their first byte on. One value is not
enough, because some bytes can be decoded both with and without a prefix. If a later value can't be decoded
with the prefix, the decoder tries it without a prefix, and vice versa.

Nothing is on disk. Threads: any number may use a decoder.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa

from segstore.errors import InvalidArgumentError, SegstoreError

from .avro_types import parsed, read_as_numbers, walked
from .confluent import SIZE, schema_id
from .decoding import VALUE, BadValues, Columns, reason_of

if TYPE_CHECKING:
    from typing_extensions import Self

SAMPLE = 100
"""The number of first values that decide whether values have the prefix."""

First = Callable[[], pa.Array]
Schemas = Mapping[int, Any] | Callable[[int], Any]


class AvroDecoder:
    """A decoder for values of one schema. The function `first` returns a topic's first values. If `by_id` is
    not None, it has the writer's schema for the id in each value's prefix; the reader's schema is `schema`.
    """

    def __init__(self, schema: Any, first: First, by_id: Schemas | None = None) -> None:
        reader = parsed(schema)
        self._kind, tagged = walked(reader)
        self.is_object = pa.types.is_struct(self._kind.type) and not isinstance(reader, list)
        self.schema = pa.schema(list(self._kind.type) if self.is_object else [(VALUE, self._kind.type)])
        self._schema = read_as_numbers(reader)
        self._by_id, self._writers = by_id, dict[int, Any]()
        self._options: dict[str, Any] = (
            {"return_named_type": True, "return_record_name": True} if tagged else {}
        )
        self._prefixed = by_id is None and self._are_prefixed(first().drop_null()[:SAMPLE].to_pylist())

    @classmethod
    def by_id(cls, schemas: Schemas, first: First) -> Self:
        """Return a decoder for values with a prefix. It has the columns of the schema with the highest id.
        This is the highest id of the mapping `schemas`; if `schemas` is a callable, it is the highest id in
        the first values. Raises InvalidArgumentError.
        """
        if isinstance(schemas, Mapping):
            ids = [_id(each) for each in schemas]
        else:
            ids = list(filter(None, (schema_id(value) for value in first().drop_null().to_pylist())))
        if not ids:
            found = (
                "is empty" if isinstance(schemas, Mapping) else "has no id to ask for in the first records"
            )
            raise InvalidArgumentError(f"value_schema {found}: give a schema, or ids and their schemas")
        try:
            return cls(_found(schemas, max(ids)), first, schemas)
        except ValueError as error:
            raise InvalidArgumentError(f"value_schema: {error}") from error

    def columns(self, values: pa.Array, names: Sequence[str]) -> Columns:
        """Decode the values, and return the columns `names`. Raises BadValues, pyarrow.ArrowInvalid,
        OverflowError.
        """
        read = self._plain if self._by_id is None else self._written
        rows: list[Any] = []
        bad: dict[int, str] = {}
        for i, data in enumerate(values.to_pylist()):
            try:
                rows.append(None if data is None else read(data))
            except SegstoreError:  # The callable `schemas` has failed; the value is not the cause.
                raise
            except Exception as error:
                bad[i] = reason_of(error)
        if bad:
            raise BadValues(bad)
        if self._kind.fix is not None:
            rows = [None if row is None else self._kind.fix(row) for row in rows]
        if not self.is_object:
            return [pa.array(rows, self.schema.field(0).type)]
        return list(pa.array(rows, pa.struct([self.schema.field(name) for name in names])).flatten())

    def _are_prefixed(self, values: Sequence[bytes]) -> bool:
        behind = sum(schema_id(data) is not None and self._is_whole(data[SIZE:]) for data in values)
        return behind > sum(map(self._is_whole, values))

    def _is_whole(self, data: bytes) -> bool:
        try:
            self._whole(data, self._schema)
        except Exception:
            return False
        return True

    def _plain(self, data: bytes) -> Any:
        if schema_id(data) is None:
            return self._whole(data, self._schema)
        one, other = (data[SIZE:], data) if self._prefixed else (data, data[SIZE:])
        try:
            return self._whole(one, self._schema)
        except Exception:
            if self._is_whole(other):
                return self._whole(other, self._schema)
            raise

    def _written(self, data: bytes) -> Any:
        number = schema_id(data)
        if number is None:
            raise ValueError(f"no schema id of Confluent's prefix before it: {data[:SIZE]!r}")
        writer = self._writers.get(number)
        if writer is None:
            schema = parsed(_found(self._by_id, number))
            writer = self._writers[number] = read_as_numbers(schema)
        return self._whole(data[SIZE:], writer, self._schema)

    def _whole(self, data: bytes, writer: Any, reader: Any = None) -> Any:
        stream = io.BytesIO(data)
        value = fastavro.schemaless_reader(stream, writer, reader, **self._options)
        if stream.tell() != len(data):
            raise ValueError(f"{len(data) - stream.tell()} bytes are left behind the value")
        return value


def _id(number: Any) -> int:
    if not isinstance(number, int):
        raise InvalidArgumentError(f"value_schema has {number!r}: the keys of schemas by id are ints")
    return number


def _found(schemas: Any, number: int) -> Any:
    """Return the schema of an id. Raises ValueError if there is none, and InvalidArgumentError if `schemas`
    is a callable that fails.
    """
    try:
        found = schemas.get(number) if isinstance(schemas, Mapping) else schemas(number)
    except LookupError:
        found = None
    except Exception as error:
        raise InvalidArgumentError(f"value_schema({number}) failed: {reason_of(error)}") from error
    if found is None:
        raise ValueError(f"there is no schema of id {number}")
    return found
