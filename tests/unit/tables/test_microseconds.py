"""Timestamps in microseconds, for DuckDB before 2.0."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import segstore
from segstore.storage.scans.bounds import ALL
from segstore.storage.scans.columns import TOPIC_SCHEMA
from segstore.tables.microseconds import MicrosecondTable
from segstore.tables.table import table_of


@pytest.mark.parametrize("columns", [None, ["timestamp"], ["key", "timestamp"], ["key"], []])
def test_the_same_records(place: Path, columns: list[str] | None) -> None:
    table = table_of(place, "flights", None)
    finer = MicrosecondTable(table)
    bounds = ALL._replace(first_offset=7)
    for one, other in zip(table.batches(columns, bounds), finer.batches(columns, bounds), strict=True):
        assert other.schema.names == one.schema.names
        assert other.num_rows == one.num_rows > 0
        if "timestamp" in one.schema.names:
            assert other.schema.field("timestamp").type == pa.timestamp("us", "UTC")
            assert other["timestamp"].cast(pa.timestamp("ms", "UTC")) == one["timestamp"]


def test_the_schema(place: Path) -> None:
    schema = MicrosecondTable(table_of(place, "flights", None)).schema
    assert schema.names == TOPIC_SCHEMA.names
    assert schema.field("timestamp") == pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False)


def test_a_timestamp_that_is_too_large(store: segstore.Store) -> None:
    store.create_topic("t", config={"message.timestamp.after.max.ms": 2**63 - 1})
    store.partition("t", 0).append(b"v", timestamp=2**62)
    with pytest.raises(pa.ArrowInvalid, match="out of bounds"):
        list(MicrosecondTable(table_of(store, "t", None)).batches())
