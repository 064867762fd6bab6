"""Promise: each engine has the columns that values are decoded to, and what its caller said of bad ones."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import polars as pl
import pytest

import segstore
from segstore import InvalidArgumentError, RecordDeserializationError

ROWS = [{"carrier": "UA", "delay": 3}, {"carrier": "AA", "delay": None}, {"carrier": "UA", "delay": 4}]
WANTED = [("AA", None), ("UA", 7)]
SQL = "select carrier, sum(delay) from flights group by 1 order by 1"


@pytest.fixture
def flights(store: segstore.Store) -> segstore.Store:
    store.create_topic("flights")
    store.partition("flights").append_batch([json.dumps(row).encode() for row in ROWS])
    return store


def test_polars(flights: segstore.Store) -> None:
    frame = segstore.scan_polars(flights, "flights", values="json")
    totals = frame.group_by("carrier").agg(pl.col("delay").drop_nulls().sum()).sort("carrier")
    assert totals.collect().rows() == [("AA", 0), ("UA", 7)]
    assert frame.select("delay").collect().to_series().to_list() == [3, None, 4]


def test_a_dataset(flights: segstore.Store) -> None:
    found = segstore.dataset(flights, "flights", values="json", value_prefix="v_")
    assert found.to_table(["offset", "v_delay"]).to_pydict() == {"offset": [0, 1, 2], "v_delay": [3, None, 4]}
    with duckdb.connect() as connection:
        connection.register("found", found)
        assert connection.sql("select sum(v_delay) from found where v_carrier = 'UA'").fetchall() == [(7,)]


GIVEN: dict[str, Any] = {
    "for all": "json",
    "by topic": {"flights": "json"},
    "with keywords": {"flights": {"values": "json", "on_bad": "null"}},
}


@pytest.mark.parametrize("values", GIVEN.values(), ids=GIVEN)
def test_views(values: Any, flights: segstore.Store) -> None:
    with duckdb.connect() as connection:
        segstore.duckdb.attach(connection, flights, values=values)
        assert connection.sql(SQL).fetchall() == WANTED


def test_bad_values(flights: segstore.Store) -> None:
    flights.partition("flights").append(b"{")
    with pytest.raises(RecordDeserializationError, match="offset 3"):
        segstore.dataset(flights, "flights", values="json").to_table()
    bad = segstore.scan_polars(flights, "flights", values="json", on_bad="column").tail(1).collect()
    assert bad["carrier"].to_list() == [None]
    assert bad["value_error"].to_list() != [None]
    with duckdb.connect() as connection:
        segstore.duckdb.attach(connection, flights, values={"flights": {"values": "json", "on_bad": "null"}})
        assert connection.sql("select count(*), count(carrier) from flights").fetchall() == [(4, 3)]


def test_a_keyword_that_is_none(flights: segstore.Store) -> None:
    with (
        duckdb.connect() as connection,
        pytest.raises(InvalidArgumentError, match="values with 'schema': allowed are values, value_schema"),
    ):
        segstore.duckdb.attach(connection, flights, values={"flights": {"schema": 1}})
