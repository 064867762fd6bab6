"""Converts records to Arrow batches that have the columns and types of Spark's Kafka source.

Threads: any; functions without state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from segstore.errors import ConfigError, InvalidArgumentError
from segstore.records import APPEND_TIME_FLAG, Records
from segstore.records.arrow import arrays, beginning, gather

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

HEADERS = "array<struct<key:string,value:binary>>"
TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": HEADERS,
}
"""All columns and their types. The columns have the order that they have in Spark's Kafka source."""

MOST_ROWS = 100_000
MOST_BYTES = 32 << 20
_MOST_MS = (1 << 63) // 1000


def ddl(headers: bool) -> str:
    """Return the schema of all columns as DDL text. `headers` is the value of the option includeHeaders."""
    return ", ".join(f"{name} {kind}" for name, kind in TYPES.items() if headers or name != "headers")


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema for Spark's schema of a read. Raises ConfigError if a column is unknown, or
    does not have its type in TYPES.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    for field in schema.fields:
        kind, wanted = TYPES.get(field.name), field.dataType.simpleString()
        if kind is None:
            raise ConfigError(f"schema: there is no column {field.name!r}; allowed are {', '.join(TYPES)}")
        if kind != wanted:
            raise ConfigError(f"schema: column {field.name} is {kind}, not {wanted}: cast it after reading")
    if not schema.fields:
        raise ConfigError(f"schema: names no column; allowed are {', '.join(TYPES)}")
    return to_arrow_schema(schema, timezone="UTC")


def batches(topic: str, partition: int, records: Records, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield records of a partition as batches with at most MOST_ROWS rows and, on average, at most about
    2 * MOST_BYTES bytes.
    """
    for part in _pieces(records):
        columns = [_column(name, topic, partition, part) for name in schema.names]
        # Spark requires exactly the types of the schema, including nullability and the names of list items.
        fitting = [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip(columns, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(fitting, schema=schema)


def _pieces(records: Records) -> Iterator[Records]:
    n = len(records)
    pieces = max(-(-n // MOST_ROWS), len(records.arena) // MOST_BYTES, 1) if n else 0
    size = -(-n // pieces) if pieces else 1
    for at in range(0, n, size):
        yield records[at : at + size] if pieces > 1 else records


def _column(name: str, topic: str, partition: int, records: Records) -> pa.Array:
    if name == "topic":
        return beginning(_topics, len(records), topic)
    if name == "partition":
        return beginning(_ints, len(records), partition)
    return _COLUMNS[name](records)


@lru_cache(maxsize=32)
def _topics(n: int, topic: str) -> pa.Array:
    return pa.repeat(pa.scalar(topic, pa.string()), n)


@lru_cache(maxsize=32)
def _ints(n: int, value: int) -> pa.Array:
    return pa.array(np.full(n, value, np.int32))


def _timestamps(records: Records) -> pa.Array:
    ms = records.timestamps
    beyond = (ms <= -_MOST_MS) | (ms >= _MOST_MS)
    if beyond.any():
        at = int(beyond.argmax())
        raise InvalidArgumentError(
            f"offset {records.offsets[at]}: timestamp {ms[at]} ms is beyond Spark's; "
            ".schema() without timestamp reads the other columns"
        )
    data = pa.py_buffer(np.ascontiguousarray(ms * 1000))
    return pa.Array.from_buffers(pa.timestamp("us", "UTC"), len(ms), [None, data])


def _timestamp_types(records: Records) -> pa.Array:
    flags = records.batches["attributes"] & APPEND_TIME_FLAG
    if (flags == flags[0]).all():
        return beginning(_ints, len(records), int(flags[0] != 0))
    return pa.array(records.timestamp_types.astype(np.int32))


def _headers(records: Records) -> pa.Array:
    ((array,),) = arrays(records, ["headers"])
    return array


_COLUMNS: dict[str, Callable[[Records], Any]] = {
    "key": lambda records: gather(records.keys),
    "value": lambda records: gather(records.values),
    "offset": lambda records: pa.array(records.offsets),
    "timestamp": _timestamps,
    "timestampType": _timestamp_types,
    "headers": _headers,
}
