"""The columns of a topic's table, as Arrow has them. Nothing is on disk.

Functions without state: safe from any thread. It imports pyarrow, and is imported only when a table is asked
for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from segstore.records import Records
from segstore.records.arrow import HEADER_TYPE, arrays

TIMESTAMP_TYPE = pa.timestamp("ms", "UTC")
TOPIC_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", TIMESTAMP_TYPE, nullable=False),
        pa.field("timestamp_type", pa.int8(), nullable=False),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADER_TYPE),
    ]
)
"""The schema of a topic's table: timestamp in ms since the epoch, timestamp_type 0 for CreateTime and 1 for
LogAppendTime.
"""


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """Return the schema of some columns, in the order named; of all for None."""
    return TOPIC_SCHEMA if columns is None else pa.schema([TOPIC_SCHEMA.field(name) for name in columns])


def batches_of(topic: str, partition: int, records: Records, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield records as batches of a schema, cut where int32 offsets of a column do not reach."""
    stored = [name for name in schema.names if name not in _MADE]
    made = {name: _MADE[name](topic, partition, records) for name in schema.names if name in _MADE}
    at = 0
    for columns in arrays(records, stored or ["offset"]):
        rows = len(columns[0])
        found = {name: column.slice(at, rows) for name, column in made.items()}
        found |= dict(zip(stored, columns, strict=False))
        yield _batch(found, rows, schema)
        at += rows


def _batch(found: Mapping[str, pa.Array], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    if not len(schema):  # a batch without columns has rows all the same
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    return pa.RecordBatch.from_arrays([_cast(found[each.name], each.type) for each in schema], schema=schema)


def _cast(column: Any, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)


_MADE: dict[str, Callable[[str, int, Records], pa.Array]] = {
    "topic": lambda topic, partition, records: pa.repeat(pa.scalar(topic, pa.string()), len(records)),
    "partition": lambda topic, partition, records: pa.repeat(pa.scalar(partition, pa.int32()), len(records)),
    "timestamp_type": lambda topic, partition, records: pa.array(records.timestamp_types),
}
