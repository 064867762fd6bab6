"""`TopicDataset`: a topic as a `pyarrow.dataset.Dataset`, which DuckDB, polars, pandas and Arrow's own users
read, as often as they like.

On disk: only reads. Threads: any; a scanner belongs to one thread at a time.

Arrow's C++ can't be given a scan that prunes by what is asked, so each method of `Dataset` that would read in
C++ is one of ours. The dataset that C++ sees behind this one refuses to be read: without it, a union of two
topics, for example, would follow a null pointer.

It imports pyarrow, and is imported only when a dataset is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pds

from segstore.errors import InvalidArgumentError, InvalidTypeError

from .expression_bounds import bounds_of
from .expressions import names_of
from .table import Table

ROWS = 131_072
"""Most records of a batch, as Arrow has it by default."""
READ_AHEAD = 2
"""Batches, each of about a megabyte of the log, that Arrow reads before they are asked for. Its own default,
16, is for many small reads; here a head of three rows would read as many megabytes.
"""
_OWN_WAYS = "a topic is read by its dataset's own scanner, to_table, to_batches, head, take and count_rows"


class TopicDataset(pds.UnionDataset):  # type: ignore[misc]  # pyarrow has no types
    """What `segstore.dataset` returns. Each scan is of the records that are there when it begins; it decodes
    the columns that are asked for, or named by the filter, and leaves out what the filter rules out by
    partition, offset or timestamp.
    """

    def __init__(
        self, table: Table, rebuild: Callable[[], Table], condition: pc.Expression | None = None
    ) -> None:
        super().__init__(table.schema, [_refusing(table.schema)])
        self._table, self._condition, self._rebuild = table, condition, rebuild

    def __repr__(self) -> str:
        told = "" if self._condition is None else f" where {self._condition}"
        return f"<TopicDataset of {self._table.source.topic}{told}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self._rebuild, self._condition)

    @property
    def schema(self) -> pa.Schema:
        """Return the columns, as `Store.scan` has them, or with those that values are decoded to."""
        return self._table.schema

    @property
    def partition_expression(self) -> pc.Expression:
        """Return an expression that is true for all records of the dataset."""
        return pc.scalar(True) if self._condition is None else self._condition

    @property
    def children(self) -> list[pds.Dataset]:
        """Return no dataset: this is no union."""
        return []

    # --- reading ---------------------------------------------------------------------------------

    def scanner(
        self,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,
        batch_size: int = ROWS,
        batch_readahead: int = READ_AHEAD,
        **options: Any,
    ) -> pds.Scanner:
        """Return a `pyarrow.dataset.Scanner`, to be read once, of these columns (names, or expressions by
        name) and the records for which `filter` is true. `options` are those of `Scanner.from_batches`.
        Raises InvalidTypeError, InvalidArgumentError for columns that are not there; what reading raises
        comes out of the scanner's methods: as an error of ours, but not through an Arrow stream.
        """
        kept = self._both(filter)
        schema = self._read(columns, kept)
        bounds = bounds_of(kept, self._partitions)
        reader = pa.RecordBatchReader.from_batches(schema, self._table.batches(schema.names, bounds))
        return pds.Scanner.from_batches(
            reader,
            columns=columns if columns is None or isinstance(columns, dict) else list(columns),
            filter=kept,
            batch_size=batch_size,
            batch_readahead=batch_readahead,
            **options,
        )

    def _both(self, condition: pc.Expression | None) -> pc.Expression | None:
        """Return the dataset's own filter, and another one."""
        if condition is None:
            return self._condition
        if not isinstance(condition, pc.Expression):
            raise InvalidTypeError(f"filter={condition!r}: must be a pyarrow.compute.Expression")
        return condition if self._condition is None else self._condition & condition

    def _read(self, columns: Any, condition: pc.Expression | None) -> pa.Schema:
        """Return the schema of the columns that are read for these, in the dataset's order."""
        if columns is None:
            return self.schema
        named = _named(columns)
        used = names_of(each for each in named if isinstance(each, pc.Expression))
        told = names_of([] if condition is None else [condition])
        if used is None or told is None:
            return self.schema
        names = used | told | {each for each in named if isinstance(each, str)}
        for name in sorted(names):
            if name not in self.schema.names and not name.startswith("__"):
                raise InvalidArgumentError(f"column {name!r}: allowed are {', '.join(self.schema.names)}")
        return pa.schema([each for each in self.schema if each.name in names])

    def _partitions(self) -> Collection[int]:
        with self._table.source.scanned() as scan:
            return [each.log.partition for each in scan.ranges]

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:
        """Return the number of records; without a filter, by the headers of batches alone."""
        return int(self.scanner([], filter, **options).count_rows())

    def head(self, num_rows: int, *args: Any, **options: Any) -> pa.Table:
        """Return the first records, in order of partition and offset, as a table; the other arguments of this
        and the next methods are those of `scanner`.
        """
        return self.scanner(*args, **options).head(num_rows)

    def take(self, indices: Any, *args: Any, **options: Any) -> pa.Table:
        """Return the records at some places of the dataset, counted from 0, as a table."""
        return self.scanner(*args, **options).take(indices)

    def to_batches(self, *args: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        """Return the records as an iterator of record batches."""
        yield from self.scanner(*args, **options).to_batches()

    def to_table(self, *args: Any, **options: Any) -> pa.Table:
        """Return the records as one table."""
        return self.scanner(*args, **options).to_table()

    # --- other datasets --------------------------------------------------------------------------

    def filter(self, expression: pc.Expression) -> TopicDataset:
        """Return a dataset of the records for which an expression is true."""
        return TopicDataset(self._table, self._rebuild, self._both(expression))

    def sort_by(self, sorting: str | list[tuple[str, str]], **kwargs: Any) -> pds.InMemoryDataset:
        """Return a dataset of all records in another order. It has them in memory."""
        return pds.InMemoryDataset(self.to_table().sort_by(sorting, **kwargs))

    def join(
        self, right_dataset: pds.Dataset | pa.Table, keys: Any, *args: Any, **kwargs: Any
    ) -> pds.InMemoryDataset:
        """Return a dataset of all records joined with others, as `pyarrow.Table.join` does, in memory."""
        return pds.InMemoryDataset(self.to_table().join(_in_memory(right_dataset), keys, *args, **kwargs))

    def join_asof(
        self, right_dataset: pds.Dataset | pa.Table, *args: Any, **kwargs: Any
    ) -> pds.InMemoryDataset:
        """Return a dataset of all records joined with others that are near, as `pyarrow.Table.join_asof`
        does, in memory.
        """
        return pds.InMemoryDataset(self.to_table().join_asof(_in_memory(right_dataset), *args, **kwargs))

    def get_fragments(self, filter: pc.Expression | None = None) -> NoReturn:
        """Raise InvalidTypeError: a topic has no fragments that Arrow could read."""
        raise InvalidTypeError(f"get_fragments: a topic has no fragments; {_OWN_WAYS}")

    def replace_schema(self, schema: pa.Schema) -> NoReturn:
        """Raise InvalidTypeError: the schema is the topic's."""
        raise InvalidTypeError(f"replace_schema: the schema is the topic's; {_OWN_WAYS}")


def _named(columns: Any) -> list[Any]:
    """Return the names or expressions of a projection. Raises InvalidTypeError."""
    found = list(columns.values() if isinstance(columns, Mapping) else columns)
    right = pc.Expression if isinstance(columns, Mapping) else str
    if isinstance(columns, (str, bytes)) or not all(isinstance(each, right) for each in found):
        raise InvalidTypeError(f"columns={columns!r}: must be a list of names, or expressions by name")
    return found


def _in_memory(dataset: pds.Dataset | pa.Table) -> pa.Table:
    return dataset.to_table() if isinstance(dataset, pds.Dataset) else dataset


class _Refusal:
    """A file that can't be read."""

    closed = False

    def _refuse(self, *_: object) -> NoReturn:
        raise InvalidTypeError(_OWN_WAYS)

    read = seek = tell = size = _refuse

    def close(self) -> None:
        """Nothing is to be done."""


def _refusing(schema: pa.Schema) -> pds.Dataset:
    """Return a dataset that C++ knows, and that raises when it is read."""
    kind = pds.IpcFileFormat()
    fragment = kind.make_fragment(pa.PythonFile(_Refusal(), mode="r"))
    return pds.FileSystemDataset([fragment], schema, kind)


def _rebuilt(rebuild: Callable[[], Table], condition: pc.Expression | None) -> TopicDataset:
    return TopicDataset(rebuild(), rebuild, condition)
