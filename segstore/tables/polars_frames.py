"""`TopicFrames`: a source from which polars reads a topic's table. polars passes it the wanted columns, a
predicate and a number of rows.

On disk: only reads. Threads: any; each iteration of frames belongs to one thread at a time. This module
imports polars, so it is imported only when a LazyFrame is made.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from functools import lru_cache
from typing import cast

import polars as pl
import pyarrow as pa

from segstore.storage.meta.topics import find_topic
from segstore.storage.scans.bounds import ALL, Bounds

from .polars_bounds import bounds_of
from .source import opened
from .table import Table
from .views import with_views


class TopicFrames:
    """The object behind polars' `register_io_source`. Each call of `frames` reads the topic again."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def schema(self) -> pl.Schema:
        """Return the columns and their types. No record is read."""
        return _schema(self._table.schema)

    def frames(
        self,
        with_columns: list[str] | None,
        predicate: pl.Expr | bytes | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        """Read the first `n_rows` records, and yield frames of those for which `predicate` is true, with the
        columns `with_columns`. An argument that is None limits nothing. `batch_size` is ignored, because
        smaller frames would take more time. Raises the errors of `Store.scan`, and polars' errors if polars
        can't compute the predicate.
        """
        condition = pl.Expr.deserialize(predicate) if isinstance(predicate, bytes) else predicate
        # `n_rows` counts records before the predicate is applied. So if it is set, no record may be skipped.
        bounds = ALL if condition is None or n_rows is not None else self._bounds(condition)
        found = self._table.batches(self._needed(with_columns, condition), bounds, with_views)
        with closing(cast("Generator[pa.RecordBatch]", found)) as batches:
            for frame in _first(batches, n_rows):
                kept = frame if condition is None else frame.filter(condition)
                shown = kept if with_columns in (None, kept.columns) else kept.select(with_columns)
                if shown.height:
                    yield shown

    def _needed(self, with_columns: list[str] | None, condition: pl.Expr | None) -> list[str] | None:
        if with_columns is None:
            return None
        needed = {*with_columns, *(() if condition is None else condition.meta.root_names())}
        return [name for name in self._table.schema.names if name in needed]

    def _bounds(self, condition: pl.Expr) -> Bounds:
        return bounds_of(condition, self._table.source.topic, self._partitions)

    def _partitions(self) -> tuple[int, ...]:
        source = self._table.source
        with opened(source.place) as store:
            return tuple(find_topic(store.topics(), source.topic).partition_ids)


def _first(batches: Iterable[object], n_rows: int | None) -> Iterator[pl.DataFrame]:
    """Yield batches as frames with up to `n_rows` rows in total. No batch is read after the last row."""
    if n_rows is None:
        yield from map(_frame, batches)
        return
    left = n_rows
    taken = iter(batches)
    while left and (batch := next(taken, None)) is not None:
        frame = _frame(batch).head(left)
        left -= frame.height
        yield frame


@lru_cache(maxsize=8)
def _schema(schema: pa.Schema) -> pl.Schema:
    return _frame(schema.empty_table()).schema


def _frame(data: object) -> pl.DataFrame:
    frame = pl.from_arrow(data)
    assert isinstance(frame, pl.DataFrame)
    return frame
