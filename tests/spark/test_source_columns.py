"""The source's columns, their types, and what tasks do where records are gone; without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from spark import schema
from stores import Clock

import segstore
from segstore.errors import ConfigError, DataLossError, InvalidArgumentError

pytest.importorskip("pyspark", "4.2")

from pyspark.sql import types

from segstore.spark.columns import TYPES, arrow_schema, ddl
from segstore.spark.source import reader

HEADERS = types.ArrayType(
    types.StructType(
        [
            types.StructField("key", types.StringType(), nullable=False),
            types.StructField("value", types.BinaryType()),
        ]
    )
)


def test_the_schema_is_spark_s_own() -> None:
    assert ddl(headers=False).startswith(
        "key binary, value binary, topic string, partition int, offset bigint"
    )
    assert "headers" in ddl(headers=True)
    assert "headers" not in ddl(headers=False)
    assert [part.split()[0] for part in ddl(headers=True).split(", ")] == list(TYPES)


WRONG: dict[str, tuple[types.StructType, tuple[str, ...]]] = {
    "of another type": (schema("key", value=types.StringType()), ("value is binary, not string", "cast")),
    "not there": (schema("key", payload=types.BinaryType()), ("no column 'payload'", "key, value")),
    "another integer": (schema("key", partition=types.LongType()), ("partition is int, not bigint",)),
    "headers of another form": (
        schema("key", headers=types.MapType(types.StringType(), types.BinaryType())),
        ("column headers is array<struct<",),
    ),
    "no column": (types.StructType(), ("names no column",)),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_columns(name: str) -> None:
    asked, said = WRONG[name]
    with pytest.raises(ConfigError) as raised:
        arrow_schema(asked)
    assert [part for part in said if part not in str(raised.value)] == [], str(raised.value)


def test_nullability_is_as_asked(store_dir: Path) -> None:
    """Spark compares the types to the letter, within lists too."""
    with segstore.open(store_dir) as store:
        store.create_topic("b")
        store.partition("b").append_batch([b"v"] * 3, headers=[[], [("h", b"x"), ("h", None)], []])
    asked = schema("key", headers=HEADERS)
    asked.add("offset", types.LongType(), nullable=False)
    made = reader({"path": str(store_dir), "subscribe": "b"}, asked)
    (batch, *_) = made.read(made.partitions()[0])
    assert batch.schema.equals(arrow_schema(asked))
    assert not batch.schema.field("offset").nullable
    pairs = [{"key": "h", "value": b"x"}, {"key": "h", "value": None}]
    assert batch.column("headers").to_pylist() == [None, pairs, None]


def test_a_stamp_that_spark_has_no_number_for(store_dir: Path) -> None:
    with segstore.open(store_dir, clock=Clock(1 << 61)) as store:
        store.create_topic("t")
        store.partition("t").append(b"v", timestamp=1 << 60)
    given = {"path": str(store_dir), "subscribe": "t"}
    made = reader(given, schema())
    with pytest.raises(InvalidArgumentError, match=r"offset 0: timestamp 1152921504606846976 ms is beyond"):
        list(made.read(made.partitions()[0]))
    made = reader(given, schema("offset"))
    assert [batch.to_pydict() for batch in made.read(made.partitions()[0])] == [{"offset": [0]}]


# --- what goes while a query runs -------------------------------------------------------------

GONE: dict[str, tuple[Any, list[int]]] = {
    "the first": (lambda store: store.partition("t").delete_records(7), list(range(7, 20))),
    "all": (lambda store: store.partition("t").delete_records(-1), []),
    "the topic": (lambda store: store.delete_topic("t"), []),
}


@pytest.mark.parametrize("name", GONE)
@pytest.mark.parametrize("fail", ["true", "false"])
def test_offsets_that_go_before_a_task_comes(name: str, fail: str, store_dir: Path) -> None:
    remove, left = GONE[name]
    config = {"segment.bytes": 200, "file.delete.delay.ms": 0}
    with segstore.open(store_dir, clock=Clock()) as store:
        store.create_topic("t", config=config)
        for _ in range(20):
            store.partition("t").append(b"v" * 30)
        made = reader({"path": str(store_dir), "subscribe": "t", "failOnDataLoss": fail}, schema("offset"))
        parts = made.partitions()
        remove(store)
        if fail == "false":
            found = [at for part in parts for b in made.read(part) for at in b.column("offset").to_pylist()]
            assert found == left
        else:
            with pytest.raises(DataLossError, match="failOnDataLoss=false"):
                [list(made.read(part)) for part in parts]
