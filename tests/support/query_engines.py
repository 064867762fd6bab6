"""Engines that take predicates: polars, pyarrow's datasets and DuckDB.

See `table_engines` for what an engine is. On disk: only reads. Threads: those of the engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

import polars as pl
from plain_rows import Answer, Query
from table_engines import Engine, Place, rows_from

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


QUERIES: dict[str, Engine] = {
    "polars, in memory": polars_in_memory,
    "polars, streaming": polars_streaming,
    "polars, a head before the predicate": polars_head_first,
}


class Kept:
    """Tables that live through a game."""

    def __init__(self) -> None:
        self.queries: Mapping[str, Engine] = {}

    def __enter__(self) -> Kept:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Nothing is open."""
