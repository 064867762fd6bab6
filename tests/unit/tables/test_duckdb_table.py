"""A table as DuckDB gets it: topics by a dictionary, and timestamps in microseconds before 2.0."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import segstore
from segstore.storage.scans.bounds import ALL
from segstore.storage.scans.columns import TOPIC_SCHEMA
from segstore.tables.duckdb_table import DuckDBTable
from segstore.tables.table import table_of

TIMES = {True: pa.timestamp("ms", "UTC"), False: pa.timestamp("us", "UTC")}
TOPIC = pa.dictionary(pa.int8(), pa.string())


@pytest.mark.parametrize("in_ms", TIMES)
@pytest.mark.parametrize(
    "columns", [None, ["timestamp"], ["key", "topic", "timestamp"], ["topic"], ["key"], []]
)
def test_the_same_records(place: Path, columns: list[str] | None, in_ms: bool) -> None:
    table = table_of(place, "flights", None)
    other_table = DuckDBTable(table, in_ms)
    bounds = ALL._replace(first_offset=7)
    for one, other in zip(table.batches(columns, bounds), other_table.batches(columns, bounds), strict=True):
        other.validate(full=True)
        assert other.num_rows == one.num_rows > 0
        names = other_table.schema.names if columns is None else columns
        assert other.schema == pa.schema([other_table.schema.field(name) for name in names])
        assert [each.to_pylist() for each in other.columns] == [each.to_pylist() for each in one.columns]


@pytest.mark.parametrize("in_ms", TIMES)
def test_the_schema(place: Path, in_ms: bool) -> None:
    schema = DuckDBTable(table_of(place, "flights", None), in_ms).schema
    assert schema.names == TOPIC_SCHEMA.names
    differ = {each.name: each.type for each in schema if each != TOPIC_SCHEMA.field(each.name)}
    assert differ == {"topic": TOPIC} | ({} if in_ms else {"timestamp": TIMES[False]})
    assert [each.nullable for each in schema] == [each.nullable for each in TOPIC_SCHEMA]


def test_a_decoded_column_of_the_topic_s_type_stays_as_it_is(store: segstore.Store) -> None:
    store.create_topic("t")
    store.partition("t", 0).append(b'{"color": "red"}')
    schema = pa.schema([("color", TOPIC)])
    table = table_of(store, "t", "json", value_schema=schema)
    (batch,) = DuckDBTable(table, True).batches(["topic", "color"])
    assert [each.to_pylist() for each in batch.columns] == [["t"], ["red"]]


def test_a_column_that_is_not_there(place: Path) -> None:
    with pytest.raises(segstore.InvalidArgumentError, match="column 'topics': allowed are topic, partition"):
        list(DuckDBTable(table_of(place, "flights", None), True).batches(["topics"]))


def test_a_timestamp_that_is_too_large(store: segstore.Store) -> None:
    store.create_topic("t", config={"message.timestamp.after.max.ms": 2**63 - 1})
    store.partition("t", 0).append(b"v", timestamp=2**62)
    with pytest.raises(pa.ArrowInvalid, match="out of bounds"):
        list(DuckDBTable(table_of(store, "t", None), False).batches())
