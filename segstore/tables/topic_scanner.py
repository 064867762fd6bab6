"""`TopicScanner`: reads the selected columns of the records of a topic for which a filter is true.

On disk: only reads. Threads: any; each iteration belongs to one thread at a time.

`TopicScanner` is not a `pyarrow.dataset.Scanner`. Arrow's scanner reads ahead in its own threads. If the
process ends while these threads run Python code, for example after a query with a LIMIT, it crashes. Here the
thread that asks for a batch reads it.

This module imports pyarrow, so it is imported only when a dataset is made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pds
from pyarrow import acero

from segstore.arrays import np
from segstore.errors import InvalidArgumentError, InvalidTypeError

from .expression_bounds import bounds_of
from .expressions import names_of
from .table import Table

ROWS = 131_072
"""The number of records that a batch has at most by default, as in Arrow."""
Columns = Sequence[str] | Mapping[str, pc.Expression] | None


class TopicScanner:
    """The result of `TopicDataset.scanner`. It has the methods of `pyarrow.dataset.Scanner`. Each method that
    returns records reads the topic again.
    """

    def __init__(
        self,
        table: Table,
        columns: Columns,
        condition: pc.Expression | None,
        batch_size: int,
        partitions: Callable[[], Collection[int]],
    ) -> None:
        self._table, self._columns, self._condition = table, given_columns(columns), condition
        self._batch_size, self._partitions = batch_size, partitions
        self._tested = _read_for([] if condition is None else [condition], table.schema)
        shown = _read_for(_expressions(self._columns, table.schema), table.schema)
        self._schema = pa.schema([each for each in table.schema if each in shown or each in self._tested])
        if (
            condition is not None
            and (kind := _projected(table.schema, {"": condition}).types[0]) != pa.bool_()
        ):
            raise InvalidTypeError(f"filter={condition}: must be true or false, not {kind}")
        self.projected_schema = _projected(table.schema, self._columns)

    @property
    def dataset_schema(self) -> pa.Schema:
        """Return the columns of the dataset."""
        return self._table.schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records as record batches. A store that the scan has opened is closed when the iterator
        is exhausted, closed or garbage-collected.
        """
        bounds = bounds_of(self._condition, self._partitions)
        for batch in self._table.batches(self._schema.names, bounds):
            yield from self._of(batch)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the records as a reader of record batches."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def scan_batches(self) -> Iterator[pds.TaggedRecordBatch]:
        """Yield the records as `TaggedRecordBatch` objects whose fragment is None."""
        return (pds.TaggedRecordBatch(batch, None) for batch in self.to_batches())

    def to_table(self) -> pa.Table:
        """Return the records as one table."""
        return pa.Table.from_batches(self.to_batches(), self.projected_schema)

    def count_rows(self) -> int:
        """Return the number of records. If there is no filter, only the headers of batches are read."""
        bare = TopicScanner(self._table, [], self._condition, self._batch_size, self._partitions)
        return sum(batch.num_rows for batch in bare.to_batches())

    def head(self, num_rows: int) -> pa.Table:
        """Return the first `num_rows` records, in order of partition and offset, as a table."""
        found: list[pa.RecordBatch] = []
        for batch in self.to_batches() if num_rows > 0 else ():
            found.append(batch.slice(0, num_rows))
            num_rows -= batch.num_rows
            if num_rows <= 0:
                break
        return pa.Table.from_batches(found, self.projected_schema)

    def take(self, indices: Any) -> pa.Table:
        """Return the records with these indexes in the scan, counted from 0, as a table. Raises
        InvalidArgumentError if the scan has no record with one of the indexes.
        """
        wanted = np.asarray(pa.array(indices, pa.int64()))
        order = np.argsort(wanted, kind="stable")
        places = wanted[order]
        found: list[pa.RecordBatch] = []
        at = done = 0
        for batch in self.to_batches() if len(places) and places[0] >= 0 else ():
            until = int(np.searchsorted(places, at + batch.num_rows))
            found.append(batch.take(pa.array(places[done:until] - at)))
            at, done = at + batch.num_rows, until
            if done == len(places):
                break
        if done < len(places):
            raise InvalidArgumentError(f"indices={wanted.tolist()}: not all of these records are there")
        return pa.Table.from_batches(found, self.projected_schema).take(pa.array(np.argsort(order)))

    # --- one batch -------------------------------------------------------------------------------

    def _of(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the selected records and columns of a batch, in batches of up to `_batch_size` records."""
        kept = self._kept(batch)
        for at in range(0, kept.num_rows, self._batch_size):
            yield self._projected(kept.slice(at, self._batch_size))

    def _kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records of a batch for which the filter is true, without a copy if these are all or
        none.
        """
        if self._condition is None:
            return batch
        (mask,) = _evaluated(
            {"": self._condition}, batch.select(self._tested.names) if self._tested else batch
        )
        count = pc.sum(mask).as_py() or 0
        if count in (0, batch.num_rows):
            return batch.slice(0, count)
        return batch.filter(mask)

    def _projected(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if isinstance(self._columns, dict):
            arrays = _evaluated(self._columns, batch)
        else:
            names = self.dataset_schema.names if self._columns is None else self._columns
            arrays = [batch.column(name) for name in names]
        if arrays:
            return pa.RecordBatch.from_arrays(arrays, schema=self.projected_schema)
        return batch.select([])


def _evaluated(expressions: Mapping[str, pc.Expression], batch: pa.RecordBatch) -> list[pa.Array]:
    """Evaluate expressions for a batch, and return an array for each expression."""
    source = acero.TableSourceNodeOptions(pa.Table.from_batches([batch]))
    projection = acero.ProjectNodeOptions(list(expressions.values()), list(expressions))
    plan = acero.Declaration.from_sequence(
        [acero.Declaration("table_source", source), acero.Declaration("project", projection)]
    )
    return [_one(column) for column in plan.to_table(use_threads=False).columns]


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


# --- columns -------------------------------------------------------------------------------------


def given_columns(columns: Any) -> list[str] | dict[str, pc.Expression] | None:
    """Check the argument `columns` of a scan, and return it as a list or dict. Raises InvalidTypeError."""
    if columns is None:
        return None
    if isinstance(columns, Mapping):
        if all(isinstance(each, pc.Expression) for each in columns.values()):
            return dict(columns)
    elif isinstance(columns, Iterable) and not isinstance(columns, (str, bytes)):
        names = list(columns)
        if all(isinstance(each, str) for each in names):
            return names
    raise InvalidTypeError(f"columns={columns!r}: must be a list of names, or a dict of expressions by name")


def _expressions(
    columns: list[str] | dict[str, pc.Expression] | None, schema: pa.Schema
) -> list[pc.Expression]:
    if isinstance(columns, dict):
        return list(columns.values())
    return [pc.field(name) for name in (schema.names if columns is None else columns)]


def _projected(schema: pa.Schema, columns: list[str] | dict[str, pc.Expression] | None) -> pa.Schema:
    """Return the schema of the columns. Raises InvalidArgumentError if Arrow can't evaluate the columns."""
    try:
        return pds.InMemoryDataset(schema.empty_table()).scanner(columns=columns).projected_schema
    except pa.ArrowException as e:
        shown = columns if not isinstance(columns, dict) else ", ".join(map(str, columns.values()))
        raise InvalidArgumentError(f"{shown}: {e}") from e


def _read_for(expressions: list[pc.Expression], schema: pa.Schema) -> pa.Schema:
    """Return the columns of `schema` that must be read for these expressions, in the schema's order. Raises
    InvalidArgumentError for an unknown column.
    """
    names = names_of(expressions)
    if names is None:
        return schema
    for name in sorted(names - set(schema.names)):
        raise InvalidArgumentError(f"column {name!r}: allowed are {', '.join(schema.names)}")
    return pa.schema([each for each in schema if each.name in names])
