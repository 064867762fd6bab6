"""`MicrosecondTable`: a table whose timestamps are in microseconds.

DuckDB before 2.0 compares in the unit of the column, and cuts a moment such as that of `now()` to it: of
milliseconds, `timestamp <= now()` would miss records, or have too many. What is shown is the same.

On disk: only reads. Threads: any. It imports pyarrow, and is imported only when a table is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from segstore.storage.scans.bounds import ALL, Bounds
from segstore.storage.scans.columns import TIMESTAMP_TYPE

from .table import Table

if TYPE_CHECKING:
    from segstore.storage.scans.topic_scan import Finish

_IN_MICROSECONDS = pa.timestamp("us", "UTC")


def _finer(schema: pa.Schema) -> pa.Schema:
    if "timestamp" not in schema.names or schema.field("timestamp").type != TIMESTAMP_TYPE:
        return schema
    at = schema.get_field_index("timestamp")
    return schema.set(at, schema.field(at).with_type(_IN_MICROSECONDS))


class MicrosecondTable(Table):
    """Another table's records; a timestamp that microseconds can't tell raises pyarrow.ArrowInvalid."""

    def __init__(self, table: Table) -> None:
        self.source, self._table = table.source, table
        self.schema = _finer(table.schema)

    def batches(
        self, columns: Sequence[str] | None = None, bounds: Bounds = ALL, finish: Finish | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield as `Table.batches` does."""

        def finer(batch: pa.RecordBatch) -> pa.RecordBatch:
            found = batch.cast(_finer(batch.schema)) if batch.num_columns else batch
            return found if finish is None else finish(found)

        return self._table.batches(columns, bounds, finer)
