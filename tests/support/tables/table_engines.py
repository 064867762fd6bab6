"""Engines that read a topic as a table: each answers a query, so that the answers can be compared.

An engine is a function of a `Place` and a `plain_rows.Query`. Answers are rows of Python's values: times in
ms, headers as tuples of pairs, None if there are none. On disk: only reads. Threads: those of the engines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import memory
import pyarrow as pa
from plain_rows import COLUMNS, Answer, Query, Row, groups_of, met, projected

import segstore
from segstore.storage.scans.columns import TOPIC_SCHEMA
from segstore.tables.source import TopicSource
from segstore.tables.table import Table


class Place(NamedTuple):
    """A topic of a store: of one that is open, or of a directory."""

    name: str
    store_or_path: Any
    topic: str

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Yield a store; one that is opened for this is closed."""
        if isinstance(self.store_or_path, (str, os.PathLike)):
            with segstore.open(self.store_or_path, "r") as store:
                yield store
        else:
            yield self.store_or_path


Engine = Callable[[Place, Query], Answer]


# --- rows from Arrow -----------------------------------------------------------------------------


def rows_from(table: pa.Table) -> Answer:
    """Return a table's rows; a table without columns has empty ones."""
    columns = [_values(name, table.column(name)) for name in table.column_names]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def _values(name: str, column: pa.ChunkedArray) -> list[Any]:
    if name == "timestamp":
        assert pa.types.is_timestamp(column.type), column.type
        assert column.type.tz is not None, column.type
        return column.cast(TOPIC_SCHEMA.field("timestamp").type).cast(pa.int64()).to_pylist()
    if name == "headers":
        return [pairs_of(each) for each in column.to_pylist()]
    return column.to_pylist()


def pairs_of(headers: Any) -> Any:
    """Return headers as tuples of pairs; None for none."""
    return None if headers is None else tuple((each["key"], each["value"]) for each in headers)


def exact(table: pa.Table, columns: Sequence[str]) -> Answer:
    """Return rows of a table that must have the columns of a topic, with their very types."""
    assert table.schema.names == list(columns), table.schema.names
    for name in columns:
        assert table.schema.field(name).type == TOPIC_SCHEMA.field(name).type, table.schema
    table.validate(full=True)
    return rows_from(table)


def finished(rows: Iterable[tuple[Any, ...]], names: Sequence[str], query: Query) -> Answer:
    """Answer a query from rows of all columns that it needs, in Python: for engines that know no predicates.
    Columns that are not there may be of any value.
    """
    places = {name: names.index(name) for name in COLUMNS if name in names}
    made = [Row(*(row[places[n]] if n in places else None for n in COLUMNS)) for row in rows]
    wanted = met(made, query)
    if query.kind == "count":
        return [(len(wanted),)]
    if query.kind == "groups":
        return groups_of(wanted)
    answer = projected(wanted, query.columns)
    return answer[: query.limit] if query.kind == "head" else answer


def needed(query: Query) -> list[str]:
    """Return the columns that `finished` needs, in an order of the query's own."""
    names = list(query.columns) if query.kind in ("rows", "head") else []
    if query.kind == "groups":
        names += ["partition", "offset", "timestamp"]
    if query.predicate is not None:
        names += query.predicate.names()
    return list(dict.fromkeys(names))


# --- scans ---------------------------------------------------------------------------------------


def scan_table(place: Place, query: Query) -> Answer:
    names = needed(query)
    with place.opened() as store:
        scan = store.scan(place.topic, **query.terms.given())
        return finished(exact(scan.to_arrow(names), names), names, query)


def scan_columns(place: Place, query: Query) -> Answer:
    """The columns are the scan's own."""
    names = needed(query)
    with place.opened() as store:
        scan = store.scan(place.topic, columns=names, **query.terms.given())
        assert scan.schema.names == names
        return finished(exact(scan.to_arrow(), names), names, query)


def scan_stream(place: Place, query: Query) -> Answer:
    names = needed(query) or ["offset"]
    with place.opened() as store:
        scan = store.scan(place.topic, columns=names, **query.terms.given())
        table = pa.RecordBatchReader.from_stream(scan).read_all()
    return finished(exact(table, names), names, query)


def scan_twice(place: Place, query: Query) -> Answer:
    """What a scan gives a second time, after one that was dropped in its midst."""
    names = needed(query)
    with place.opened() as store:
        scan = store.scan(place.topic, columns=names, **query.terms.given())
        next(scan.batches(), None)
        first = scan.to_arrow()
        assert scan.to_arrow().equals(first)
        return finished(exact(first, names), names, query)


def scan_records(place: Place, query: Query) -> Answer:
    with place.opened() as store:
        scan = store.scan(place.topic, **query.terms.given())
        rows = [(*record[:-1], tuple(map(tuple, record.headers)) or None) for record in scan]
    return finished(rows, COLUMNS, query)


def scan_pandas(place: Place, query: Query) -> Answer:
    names = needed(query)
    with place.opened() as store:
        table = store.scan(place.topic, columns=names, **query.terms.given()).to_arrow()
    frame = table.to_pandas()
    if not names:
        return finished([()] * len(frame), names, query)
    back = pa.Table.from_pandas(frame, table.schema, preserve_index=False)
    return finished(exact(back, names), names, query)


def appended_table(place: Place, query: Query) -> Answer:
    """A scan's table that went into another log, and came out of it."""
    names = ["topic", "partition", "offset", "timestamp_type"]
    with place.opened() as store:
        table = store.scan(place.topic, **query.terms.given()).to_arrow()
    with memory.directory() as root, segstore.open(root) as other:
        other.create_topic("appended")
        log = other.partition("appended")
        log.append_table(table)
        back = [(r.timestamp, r.key, r.value, tuple(map(tuple, r.headers)) or None) for r in log]
    rows = [(*row, *record) for row, record in zip(rows_from(table.select(names)), back, strict=True)]
    return finished(rows, [*names, "timestamp", "key", "value", "headers"], query)


def scan_bounded(place: Place, query: Query) -> Answer:
    """Rows within bounds, in order, and perhaps others."""
    with place.opened() as store:
        scan = store.scan(place.topic, **query.terms.given())
        batches = list(scan.batches(query.columns, query.bounds))
    return _of_batches(batches, query)


def table_bounded(place: Place, query: Query) -> Answer:
    """The same, of what engines read."""
    table = Table(TopicSource(place.store_or_path, place.topic, **query.terms.given()))
    return _of_batches(list(table.batches(query.columns, query.bounds)), query)


def _of_batches(batches: Sequence[pa.RecordBatch], query: Query) -> Answer:
    answer: Answer = []
    for batch in batches:
        answer += exact(pa.Table.from_batches([batch]), query.columns)
    return answer


SCANS: dict[str, Engine] = {
    "scan.to_arrow(columns)": scan_table,
    "scan(columns=).to_arrow()": scan_columns,
    "a scan's Arrow stream": scan_stream,
    "a scan, twice": scan_twice,
    "records of a scan": scan_records,
    "pandas of a scan": scan_pandas,
    "a scan's table, appended elsewhere": appended_table,
}
"""Their rows are in order of partition and offset."""
BOUNDED: dict[str, Engine] = {
    "scan.batches(bounds)": scan_bounded,
    "Table.batches(bounds)": table_bounded,
}
