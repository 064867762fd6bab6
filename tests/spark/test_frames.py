"""DataFrames that are kept in a topic: all types, empty and large ones, failures. Needs Java."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import segstore
from segstore import errors
from segstore.spark import checkpoint, restore
from segstore.spark.frames import parts_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.judge("spark"), pytest.mark.kind("Spark")]

TYPES = """
    select id, cast(id as byte) b, id % 2 = 0 flag, id / 3 half, cast(id as decimal(20, 3)) money,
        if(id % 3 = 0, null, concat('t', id)) text, cast('x' || id as binary) raw, array(id, null) list,
        map('k', id) pairs, struct(id as x, 'y' as y) pair, timestamp_millis(id * 86400000) stamp,
        date_from_unix_date(cast(id as int)) day, timestamp_ntz '2013-01-01 00:00:00' local
    from range(100)
"""


def test_every_type_comes_back(spark: SparkSession, store_dir: Path) -> None:
    frame = spark.sql(TYPES)
    with segstore.open(store_dir) as store:
        kept = checkpoint(frame, store, "kept")
        assert kept.schema == frame.schema
        assert sorted(kept.collect()) == sorted(frame.collect())
        assert "Range" not in kept._jdf.queryExecution().toString()
        with pytest.raises(errors.TopicAlreadyExistsError):
            checkpoint(frame, store, "kept")
    with segstore.open(store_dir, mode="r") as store:
        assert sorted(restore(spark, store, "kept").collect()) == sorted(frame.collect())


def test_no_rows(spark: SparkSession, store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        kept = checkpoint(spark.sql(TYPES).where("id < 0"), store)
        assert kept.collect() == []
        assert len(kept.columns) == 13


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, store_dir: Path) -> None:
    bad = spark.sql("select raise_error('no luck') x from range(10)")
    with segstore.open(store_dir) as store:
        with pytest.raises(Exception, match="no luck"):
            checkpoint(bad, store, "bad")
        assert store.topics() == {}
        with pytest.raises(errors.UnknownTopicOrPartitionError):
            restore(spark, store, "bad")
        store.create_topic("other")
        for _ in range(2):
            with pytest.raises(errors.InvalidArgumentError, match="no whole DataFrame"):
                restore(spark, store, "other")
            store.partition("other").append(b"x")


def test_parts_of_a_batch() -> None:
    pa = pytest.importorskip("pyarrow")
    batch = pa.RecordBatch.from_pydict({"a": list(range(1000))})
    parts = list(parts_of(batch, 800))
    assert [part.num_rows for part in parts] == [100] * 10
    assert pa.Table.from_batches(parts).to_batches()[0].schema == batch.schema
    assert [v for part in parts for v in part.column("a").to_pylist()] == list(range(1000))
    assert len(list(parts_of(batch, 1))) == 1000
    assert list(parts_of(batch.slice(0, 0), 1)) == []
