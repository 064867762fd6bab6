"""`TopicDataset`: a topic as a `pyarrow.dataset.Dataset`, which DuckDB, polars, pandas and Arrow's own
functions can read any number of times.

On disk: only reads. Threads: any; a scanner belongs to one thread at a time.

Arrow's C++ code can't pass columns and a filter to a scan of another library. So each method of `Dataset`
that would read by C++ code is overridden here. The object has a C++ dataset that raises an error when it is
read. If it had none, a union of two topics, for example, would follow a null pointer.

This module imports pyarrow, so it is imported only when a dataset is made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pds

from segstore.config import arguments
from segstore.errors import InvalidArgumentError, InvalidTypeError

from .table import Table
from .topic_scanner import ROWS, Columns, TopicScanner

_OPTIONS = (
    *("batch_readahead", "fragment_readahead", "fragment_scan_options", "use_threads", "cache_metadata"),
    "memory_pool",
)
_OWN_WAYS = "a topic is read by its dataset's own scanner, to_table, to_batches, head, take and count_rows"


class TopicDataset(pds.UnionDataset):  # type: ignore[misc]  # pyarrow has no types
    """The result of `segstore.dataset`. Each scan reads the records that exist when it begins. It decodes
    only the selected columns and the columns of the filter. If it can, it skips reads of records that the
    filter excludes by partition, offset or timestamp.
    """

    def __init__(
        self, table: Table, rebuild: Callable[[], Table], condition: pc.Expression | None = None
    ) -> None:
        super().__init__(table.schema, [_refusing(table.schema)])
        self._table, self._condition, self._rebuild = table, condition, rebuild

    def __repr__(self) -> str:
        where = "" if self._condition is None else f" where {self._condition}"
        return f"<TopicDataset of {self._table.source.topic}{where}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self._rebuild, self._condition)

    @property
    def schema(self) -> pa.Schema:
        """Return the columns: those of `Store.scan`, in which decoded columns may replace `value`."""
        return self._table.schema

    @property
    def partition_expression(self) -> pc.Expression:
        """Return an expression that is true for all records of the dataset."""
        return pc.scalar(True) if self._condition is None else self._condition

    @property
    def children(self) -> list[pds.Dataset]:
        """Return an empty list, because this dataset is not a union of datasets."""
        return []

    # --- reading ---------------------------------------------------------------------------------

    def scanner(
        self,
        columns: Columns = None,
        filter: pc.Expression | None = None,
        batch_size: int = ROWS,
        **options: Any,
    ) -> TopicScanner:
        """Return a scanner for the records for which `filter` is true, in batches of up to `batch_size`
        records. `columns` are names of columns, or a dict from names to expressions; None stands for all
        columns.

        `options` are other options of Arrow's datasets, such as `use_threads`; they have no effect. Raises
        InvalidTypeError, and InvalidArgumentError for an unknown column or option, or for an expression that
        Arrow can't evaluate.
        """
        for name in options:
            if name not in _OPTIONS:
                raise InvalidArgumentError(f"{name}: allowed are {', '.join(_OPTIONS)}")
        rows = arguments.whole("batch_size", batch_size, 1)
        return TopicScanner(self._table, columns, self._both(filter), rows, self._partitions)

    def _both(self, condition: pc.Expression | None) -> pc.Expression | None:
        """Return an expression that is true if both the dataset's own filter and `condition` are true; None
        if there is neither.
        """
        if condition is None:
            return self._condition
        if not isinstance(condition, pc.Expression):
            raise InvalidTypeError(f"filter={condition!r}: must be a pyarrow.compute.Expression")
        return condition if self._condition is None else self._condition & condition

    def _partitions(self) -> Collection[int]:
        with self._table.source.scanned() as scan:
            return [each.log.partition for each in scan.ranges]

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:
        """Return the number of records for which `filter` is true. If there is no filter, only the headers of
        batches are read.
        """
        return self.scanner([], filter, **options).count_rows()

    def head(self, num_rows: int, *args: Any, **options: Any) -> pa.Table:
        """Return the first `num_rows` records, in order of partition and offset, as a table. `args` and
        `options`, here and in `take`, `to_batches` and `to_table`, are the arguments of `scanner`.
        """
        return self.scanner(*args, **options).head(num_rows)

    def take(self, indices: Any, *args: Any, **options: Any) -> pa.Table:
        """Return the records with these indexes in the scan, counted from 0, as a table."""
        return self.scanner(*args, **options).take(indices)

    def to_batches(self, *args: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        """Return the records as an iterator of record batches."""
        return self.scanner(*args, **options).to_batches()

    def to_table(self, *args: Any, **options: Any) -> pa.Table:
        """Return the records as one table."""
        return self.scanner(*args, **options).to_table()

    # --- other datasets --------------------------------------------------------------------------

    def filter(self, expression: pc.Expression) -> TopicDataset:
        """Return a dataset of those records of this dataset for which `expression` is true."""
        return TopicDataset(self._table, self._rebuild, self._both(expression))

    def sort_by(self, sorting: str | list[tuple[str, str]], **kwargs: Any) -> pds.InMemoryDataset:
        """Return a dataset of all records, sorted in memory."""
        return pds.InMemoryDataset(self.to_table().sort_by(sorting, **kwargs))

    def join(
        self, right_dataset: pds.Dataset | pa.Table, keys: Any, *args: Any, **kwargs: Any
    ) -> pds.InMemoryDataset:
        """Join all records with `right_dataset` by `pyarrow.Table.join`. Return the result as a dataset in
        memory. It has no headers, because Arrow can't join lists.
        """
        joined = _joinable(self).join(_joinable(right_dataset), keys, *args, **kwargs)
        return pds.InMemoryDataset(joined)

    def join_asof(
        self, right_dataset: pds.Dataset | pa.Table, *args: Any, **kwargs: Any
    ) -> pds.InMemoryDataset:
        """Join all records with `right_dataset` by the nearest key (`pyarrow.Table.join_asof`). Return the
        result as a dataset in memory. It has no headers, because Arrow can't join lists.
        """
        joined = _joinable(self).join_asof(_joinable(right_dataset), *args, **kwargs)
        return pds.InMemoryDataset(joined)

    def get_fragments(self, filter: pc.Expression | None = None) -> NoReturn:
        """Raise InvalidTypeError, because Arrow can't read a part of a topic by itself."""
        raise InvalidTypeError(f"get_fragments: a topic has no fragments; {_OWN_WAYS}")

    def replace_schema(self, schema: pa.Schema) -> NoReturn:
        """Raise InvalidTypeError, because a topic's schema can't be replaced."""
        raise InvalidTypeError(f"replace_schema: the schema is the topic's; {_OWN_WAYS}")


def _joinable(dataset: pds.Dataset | pa.Table) -> pa.Table:
    """Return a dataset as a table in memory, without a topic's columns that Arrow can't join."""
    if not isinstance(dataset, TopicDataset):
        return dataset.to_table() if isinstance(dataset, pds.Dataset) else dataset
    return dataset.to_table([each.name for each in dataset.schema if not pa.types.is_nested(each.type)])


class _Refusal:
    """A file object that raises InvalidTypeError when it is read."""

    closed = False

    def _refuse(self, *_: object) -> NoReturn:
        raise InvalidTypeError(_OWN_WAYS)

    read = seek = tell = size = _refuse

    def close(self) -> None:
        """Do nothing."""


def _refusing(schema: pa.Schema) -> pds.Dataset:
    """Return a C++ dataset that raises InvalidTypeError when it is read."""
    kind = pds.IpcFileFormat()
    fragment = kind.make_fragment(pa.PythonFile(_Refusal(), mode="r"))
    return pds.FileSystemDataset([fragment], schema, kind)


def _rebuilt(rebuild: Callable[[], Table], condition: pc.Expression | None) -> TopicDataset:
    return TopicDataset(rebuild(), rebuild, condition)
