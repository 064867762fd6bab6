"""Engines that take predicates: polars, pyarrow's datasets and DuckDB.

See `table_engines` for what an engine is. On disk: only reads. Threads: those of the engines.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from plain_rows import Answer, Query
from table_engines import Engine, Place, exact, rows_from

import segstore
from segstore.storage.scans.columns import TOPIC_SCHEMA

# --- polars --------------------------------------------------------------------------------------

_ALL = (1 << 31) - 1
_POLARS = pl.Schema(pl.from_arrow(TOPIC_SCHEMA.empty_table()).schema)


def _lazy(place: Place, query: Query) -> pl.LazyFrame:
    frame = segstore.scan_polars(place.store_or_path, place.topic, **query.terms.given())
    assert frame.collect_schema() == _POLARS
    return frame if query.predicate is None else frame.filter(query.predicate.polars())


def _asked(frame: pl.LazyFrame, query: Query) -> pl.LazyFrame:
    """Return what a query asks of the rows that are left."""
    if query.kind == "count":
        return frame.select(pl.len())
    if query.kind == "groups":
        offset, time = pl.col("offset"), pl.col("timestamp")
        told = (pl.len(), offset.min().alias("first"), offset.max().alias("last"), time.max())
        return frame.group_by("partition").agg(*told)
    chosen = frame.select(query.columns or ["offset"])  # without a column, polars has no rows
    return chosen.head(query.limit) if query.kind == "head" else chosen


def _from_polars(frame: pl.DataFrame, query: Query) -> Answer:
    if query.kind in ("rows", "head") and not query.columns:
        return [()] * frame.height
    return rows_from(frame.to_arrow())


def polars_in_memory(place: Place, query: Query) -> Answer:
    return _from_polars(_asked(_lazy(place, query), query).collect(engine="in-memory"), query)


def polars_streaming(place: Place, query: Query) -> Answer:
    return _from_polars(_asked(_lazy(place, query), query).collect(engine="streaming"), query)


def polars_head_first(place: Place, query: Query) -> Answer:
    """A head of all rows, long enough for all, before the predicate."""
    frame = segstore.scan_polars(place.store_or_path, place.topic, **query.terms.given()).head(_ALL)
    if query.predicate is not None:
        frame = frame.filter(query.predicate.polars())
    return _from_polars(_asked(frame, query).collect(), query)


# --- pyarrow's datasets --------------------------------------------------------------------------


def _dataset(place: Place, query: Query) -> ds.Dataset:
    return segstore.dataset(place.store_or_path, place.topic, **query.terms.given())


def _filter(query: Query) -> pc.Expression | None:
    return None if query.predicate is None else query.predicate.arrow()


def _of_dataset(table: pa.Table, query: Query) -> Answer:
    """Answer from the rows for which the predicate holds."""
    if query.kind == "count":
        return [(table.num_rows,)]
    if query.kind == "groups":
        told = [([], "count_all"), ("offset", "min"), ("offset", "max"), ("timestamp", "max")]
        columns = ["partition", "count_all", "offset_min", "offset_max", "timestamp_max"]
        grouped = table.group_by("partition").aggregate(told).select(columns)
        return rows_from(grouped.rename_columns({"timestamp_max": "timestamp"}))
    return exact(table, query.columns)


def _columns(query: Query) -> list[str]:
    if query.kind == "count":
        return []
    return ["timestamp", "offset", "partition"] if query.kind == "groups" else list(query.columns)


def dataset_table(place: Place, query: Query) -> Answer:
    found, columns = _dataset(place, query), _columns(query)
    if query.kind == "head":
        return exact(found.head(query.limit, columns=columns, filter=_filter(query)), columns)
    if query.kind == "count":
        return [(found.count_rows(filter=_filter(query)),)]
    return _of_dataset(found.to_table(columns=columns, filter=_filter(query)), query)


def dataset_scanner(place: Place, query: Query) -> Answer:
    """A scanner's reader, of columns that are expressions by name."""
    columns = {name: pc.field(name) for name in _columns(query)}
    scanner = _dataset(place, query).scanner(columns=columns, filter=_filter(query))
    if query.kind == "head":
        return exact(scanner.head(query.limit), query.columns)
    if query.kind == "count":
        return [(scanner.count_rows(),)]
    return _of_dataset(scanner.to_reader().read_all() if columns else scanner.to_table(), query)


def dataset_filtered(place: Place, query: Query) -> Answer:
    """A filtered dataset, whose batches are read."""
    found, columns = _dataset(place, query), _columns(query)
    if query.predicate is not None:
        found = found.filter(query.predicate.arrow())
    batches = list(found.to_batches(columns=columns))
    schema = pa.schema([TOPIC_SCHEMA.field(name) for name in columns])
    answer = _of_dataset(pa.Table.from_batches(batches, batches[0].schema if batches else schema), query)
    return answer[: query.limit] if query.kind == "head" else answer


def polars_of_dataset(place: Place, query: Query) -> Answer:
    frame = pl.scan_pyarrow_dataset(_dataset(place, query))
    if query.predicate is not None:
        frame = frame.filter(query.predicate.polars())
    return _from_polars(_asked(frame, query).collect(), query)


# --- DuckDB --------------------------------------------------------------------------------------


def _sql(relation: str, query: Query) -> str:
    where = "" if query.predicate is None else f" WHERE {query.predicate.sql()}"
    if query.kind == "count":
        return f"SELECT count(*) AS n FROM {relation}{where}"
    if query.kind == "groups":
        told = 'count(*) AS n, min("offset") AS a, max("offset") AS b, max("timestamp") AS "timestamp"'
        return f'SELECT "partition", {told} FROM {relation}{where} GROUP BY "partition"'
    columns = ", ".join(f'"{name}"' for name in query.columns or ("offset",))
    limit = f" LIMIT {query.limit}" if query.kind == "head" else ""
    return f"SELECT {columns} FROM {relation}{where}{limit}"


def _from_duckdb(connection: Any, relation: str, query: Query) -> Answer:
    table = connection.sql(_sql(relation, query)).to_arrow_table()
    return [()] * table.num_rows if query.kind in _ROWS and not query.columns else rows_from(table)


_ROWS = ("rows", "head")


def _connection() -> Any:
    connection = duckdb.connect()
    connection.execute("SET threads = 2; SET TimeZone = 'UTC'; SET enable_progress_bar = false")
    return connection


@cache
def _connected() -> Any:
    """Return the connection of this process: to make one takes a hundred times as long as a query."""
    return _connection()


@contextmanager
def _registered(name: str, found: Any) -> Iterator[Any]:
    """Yield a connection to which a table is known by a name."""
    connection = _connected()
    connection.register(name, found)
    try:
        yield connection
    finally:
        connection.unregister(name)


def duckdb_view(place: Place, query: Query) -> Answer:
    """A view that `attach` makes; it has none of a scan's bounds but its isolation level."""
    connection, level = _connected(), query.terms.isolation_level
    topics = {"shown": place.topic}
    segstore.duckdb.attach(connection, place.store_or_path, topics=topics, isolation_level=level)
    try:
        return _from_duckdb(connection, "shown", query)
    finally:
        connection.unregister("shown")


def duckdb_registered(place: Place, query: Query) -> Answer:
    with _registered("topic_table", _dataset(place, query)) as connection:
        return _from_duckdb(connection, "topic_table", query)


def duckdb_replaced(place: Place, query: Query) -> Answer:
    """DuckDB finds the dataset by its variable's name."""
    found = _dataset(place, query)
    table = _connected().sql(_sql("found", query)).to_arrow_table()
    del found
    return [()] * table.num_rows if query.kind in _ROWS and not query.columns else rows_from(table)


def duckdb_table(place: Place, query: Query) -> Answer:
    """A scan's table in memory."""
    with place.opened() as store:
        found = store.scan(place.topic, **query.terms.given()).to_arrow()
    with _registered("topic_table", found) as connection:
        return _from_duckdb(connection, "topic_table", query)


QUERIES: dict[str, Engine] = {
    "polars, in memory": polars_in_memory,
    "polars, streaming": polars_streaming,
    "polars, a head before the predicate": polars_head_first,
    "polars of a dataset": polars_of_dataset,
    "a dataset": dataset_table,
    "a dataset's scanner": dataset_scanner,
    "a filtered dataset": dataset_filtered,
    "DuckDB, attached": duckdb_view,
    "DuckDB, a registered dataset": duckdb_registered,
    "DuckDB, a variable": duckdb_replaced,
    "DuckDB, a table": duckdb_table,
}
WHOLE = frozenset({"DuckDB, attached"})
"""Engines whose tables have the whole topic: of a query's terms they take the isolation level only."""


class Kept:
    """Tables of a whole topic, uncommitted, that are made once, and asked again while the topic grows. They
    are at a place of their own.
    """

    def __init__(self, place: Place) -> None:
        self._frame = segstore.scan_polars(place.store_or_path, place.topic)
        self._dataset = segstore.dataset(place.store_or_path, place.topic)
        self._connection = _connection()
        segstore.duckdb.attach(self._connection, place.store_or_path, topics={"shown": place.topic})
        self.queries: dict[str, Engine] = {
            "polars, a kept frame": self._polars,
            "a kept dataset": self._pyarrow,
            "DuckDB, attached before": self._duckdb,
        }

    def close(self) -> None:
        self._connection.close()

    def _polars(self, _: Place, query: Query) -> Answer:
        frame = self._frame if query.predicate is None else self._frame.filter(query.predicate.polars())
        return _from_polars(_asked(frame, query).collect(), query)

    def _pyarrow(self, _: Place, query: Query) -> Answer:
        if query.kind == "count":
            return [(self._dataset.count_rows(filter=_filter(query)),)]
        answer = _of_dataset(self._dataset.to_table(columns=_columns(query), filter=_filter(query)), query)
        return answer[: query.limit] if query.kind == "head" else answer

    def _duckdb(self, _: Place, query: Query) -> Answer:
        return _from_duckdb(self._connection, "shown", query)
