"""`Table`: a topic as a table for query engines. It has the topic's columns, but decoded columns may replace
the column `value`.

On disk: only reads. Threads: any; each iteration of batches belongs to one thread at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from segstore.choices import ON_BAD
from segstore.config import arguments
from segstore.errors import InvalidArgumentError
from segstore.storage.scans.bounds import ALL, Bounds
from segstore.storage.scans.columns import TOPIC_SCHEMA
from segstore.storage.store.store import Store

from .source import TopicSource
from .typed_columns import TypedColumns
from .values.choice import decoder_of
from .values.decoding import VALUE

if TYPE_CHECKING:
    from segstore.storage.scans.topic_scan import Finish

SAMPLE = 1000
"""The number of values from which a schema is inferred."""


class Table:
    """A topic as a table; `scan_polars`, `dataset` and `segstore.duckdb` use it. `schema` has the columns.

    `values` says how values are decoded: None (they are not), "json", "avro", "protobuf", a pyarrow.Schema
    (as JSON with these columns), or a callable (see `values.function`). `value_schema` is, for "avro", a
    schema (a dict or JSON text), or a mapping or callable that gives the schema of an id in Confluent's
    prefix. For "protobuf" it is a message class or descriptor. For "json" it is a pyarrow.Schema; if it is
    None, the schema is inferred once, from the first 1000 values. The decoded columns of a null value are
    null.

    `on_bad` says what happens if a value can't be decoded: "error" raises RecordDeserializationError; "null"
    makes the value's columns null; "column" does so too, and gives the reason in a column `value_error`.
    `value_prefix` is put before the names of the decoded columns, if values are objects.

    Raises InvalidArgumentError, InvalidTypeError, MissingPackageError.
    """

    def __init__(
        self,
        source: TopicSource,
        values: Any = None,
        value_schema: Any = None,
        on_bad: str = "error",
        value_prefix: str = "",
    ) -> None:
        self.source = source
        arguments.one_of("on_bad", on_bad, ON_BAD)
        decoder = decoder_of(values, value_schema, self._first_values)
        self._typed = None if decoder is None else TypedColumns(decoder, on_bad, value_prefix)
        self.schema: pa.Schema = TOPIC_SCHEMA if self._typed is None else self._typed.schema

    def batches(
        self, columns: Sequence[str] | None = None, bounds: Bounds = ALL, finish: Finish | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the present records as record batches with these columns; if `columns` is None, with all
        columns. The batches have all records within `bounds`, and may have other records too.

        If this method opens a store, it closes the store at the end of the iteration, even if the iterator is
        closed or garbage-collected before its last batch. Values are read only if a column needs them.
        `finish` is as in `TopicScan.batches`. Raises RecordDeserializationError.
        """
        wanted = self.schema.names if columns is None else list(columns)
        for name in wanted:
            if name not in self.schema.names:
                raise InvalidArgumentError(f"column {name!r}: allowed are {', '.join(self.schema.names)}")
        typed = self._typed
        stored = wanted if typed is None else typed.stored(wanted)
        with self.source.scanned() as scan:
            if typed is None or VALUE not in stored:
                yield from scan.batches(stored, bounds, finish)
                return
            for batch in scan.batches(stored, bounds):
                found = typed.batch(self.source.topic, batch, wanted)
                yield found if finish is None else finish(found)

    def _first_values(self) -> pa.Array:
        """Return the topic's first SAMPLE values that are not null."""
        found, count = [], 0
        with self.source.scanned() as scan:
            for batch in scan.batches([VALUE]):
                values = batch.column(0).drop_null()[: SAMPLE - count]
                found.append(values)
                count += len(values)
                if count == SAMPLE:
                    break
        return pa.concat_arrays(found) if found else pa.array([], pa.binary())


def table_of(
    store_or_path: Store | str | os.PathLike[str],
    topic: str,
    values: Any = None,
    *,
    value_schema: Any = None,
    on_bad: str = "error",
    value_prefix: str = "",
    **terms: Any,
) -> Table:
    """Return a topic as a table. `terms` are arguments of `Store.scan`; `values` and the arguments after it
    are those of `Table`. Raises the errors of both.
    """
    return Table(TopicSource(store_or_path, topic, **terms), values, value_schema, on_bad, value_prefix)
