"""`DuckDBTable`: a topic's table in which two columns have other types, which suit DuckDB better.

- The column `topic` is a dictionary array with one entry. A query that only counts records reads a table's
  first column; if this column were an array of strings, DuckDB would make a string for each record.
- For DuckDB before 2.0 the column `timestamp` is in microseconds. Such a DuckDB compares times in the
  column's unit, and rounds a time such as `now()` down to this unit. If the unit were milliseconds,
  `timestamp <= now()` would select too few or too many records.

On disk: only reads. Threads: any. This module imports pyarrow, so it is
imported only when a table is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from segstore.storage.scans.bounds import ALL, Bounds
from segstore.storage.scans.columns import TIMESTAMP_TYPE, constant

from .table import Table

if TYPE_CHECKING:
    from segstore.storage.scans.topic_scan import Finish

_TOPIC = pa.dictionary(pa.int8(), pa.string())
_ENTRY = pa.scalar(0, pa.int8())


class DuckDBTable(Table):
    """The records of another table, with timestamps in ms if `in_ms`, else in µs. If a timestamp in µs does
    not fit into 64 bits, the read raises pyarrow.ArrowInvalid.
    """

    def __init__(self, table: Table, in_ms: bool) -> None:
        self.source, self._table = table.source, table
        self._dictionary = pa.array([self.source.topic])
        time = TIMESTAMP_TYPE if in_ms else pa.timestamp("us", "UTC")
        types = {("topic", pa.string()): _TOPIC, ("timestamp", TIMESTAMP_TYPE): time}
        self.schema = pa.schema(
            [each.with_type(types.get((each.name, each.type), each.type)) for each in table.schema]
        )

    def batches(
        self, columns: Sequence[str] | None = None, bounds: Bounds = ALL, finish: Finish | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches of `Table.batches`, with the types of this table's schema."""
        wanted = self.schema.names if columns is None else list(columns)
        stored = [name for name in wanted if name not in self.schema.names or not self._is_topic(name)]

        def made(batch: pa.RecordBatch) -> pa.RecordBatch:
            found = self._of(batch, wanted) if wanted else batch
            return found if finish is None else finish(found)

        return self._table.batches(stored, bounds, made)

    def _is_topic(self, name: str) -> bool:
        return name == "topic" and bool(self.schema.field(name).type == _TOPIC)

    def _of(self, batch: pa.RecordBatch, wanted: Sequence[str]) -> pa.RecordBatch:
        schema = pa.schema([self.schema.field(name) for name in wanted])
        arrays = [
            self._topics(batch.num_rows) if self._is_topic(name) else batch.column(name).cast(kind.type)
            for name, kind in zip(wanted, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _topics(self, n: int) -> pa.Array:
        return pa.DictionaryArray.from_arrays(constant(n, _ENTRY), self._dictionary)
