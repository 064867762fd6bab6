"""`Table`: a topic as a table that engines read, with the columns of a topic, or with those that its values
are decoded to in place of the value.

On disk: only reads. Threads: any; each iteration of batches belongs to one thread at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from segstore.errors import InvalidArgumentError
from segstore.storage.scans.bounds import ALL, Bounds
from segstore.storage.scans.columns import TOPIC_SCHEMA
from segstore.storage.store.store import Store

from .source import Source


class Table:
    """What `scan_polars`, `dataset` and `segstore.duckdb` read. `schema` has the columns."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.schema: pa.Schema = TOPIC_SCHEMA

    def batches(self, columns: Sequence[str] | None = None, bounds: Bounds = ALL) -> Iterator[pa.RecordBatch]:
        """Yield the records that there are now as record batches of these columns, by default of all: those
        within `bounds`, and perhaps others. A store that is opened for it is closed at the end, also where
        the iterator is closed or dropped before.
        """
        with self.source.scanned() as scan:
            yield from scan.batches(self.schema.names if columns is None else columns, bounds)


def table_of(
    store_or_path: Store | str | os.PathLike[str], topic: str, values: Any = None, **terms: Any
) -> Table:
    """Return a topic's table; `terms` are those of `Store.scan`, whose errors are raised. Raises
    InvalidArgumentError for other `values` than None.
    """
    if values is not None:
        raise InvalidArgumentError(f"values={values!r}: must be None")
    return Table(Source(store_or_path, topic, **terms))
