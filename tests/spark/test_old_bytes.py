"""Spark reads the partitions that a Kafka 2.8.2 broker wrote as messages of magic 0 and 1. Needs Java."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from partitions import GOLDEN, read_expected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.judge("spark"), pytest.mark.kind("Spark")]

OLD = GOLDEN / "old"


def test_each_partition_is_what_a_consumer_received(spark: SparkSession) -> None:
    frame = spark.read.format("segstore").option("subscribePattern", ".*").load(str(OLD / "clean"))
    columns = ("topic", "offset", "timestamp", "key", "value")
    rows = frame.selectExpr("topic", "offset", "unix_millis(timestamp) timestamp", "key", "value").collect()
    found = sorted(tuple(row[name] for name in columns) for row in rows)
    files = sorted((OLD / "records").glob("*.jsonl.gz"))
    expected = [
        (file.name.removesuffix("-0.jsonl.gz"), r.offset, r.timestamp, r.key, r.value)
        for file in files
        for r in read_expected(file)
    ]
    assert len({row[0] for row in found}) == len(files) > 0
    assert found == sorted(expected)
