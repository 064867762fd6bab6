"""The one SparkSession of a test run, and what tests of Spark share."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import segstore
from segstore.errors import SegstoreError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
FAST_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Tests that stop it, or change its settings and don't put them back, spoil it for the others."""
    pytest.importorskip("pyspark", "4.2", reason="PySpark 4.2 or newer is not installed")
    from segstore.spark import session
    from segstore.spark.java import find_java

    try:
        find_java()
    except SegstoreError as error:
        pytest.skip(str(error))
    made = session(
        "local[2]",
        quick=True,
        spark_sql_shuffle_partitions=2,
        spark_sql_streaming_checkpointFileManagerClass=FAST_CHECKPOINTS,
        spark_driver_memory="1g",
    )
    yield made
    made.stop()


def read(spark: SparkSession, path: Path | str, **options: Any) -> DataFrame:
    """All of a store, or what `options` say: `kafka_isolation_level` is kafka.isolation.level."""
    if not {"subscribe", "subscribePattern", "assign"} & options.keys():
        options["subscribePattern"] = ".*"
    named = {name.replace("_", "."): value for name, value in options.items()}
    return spark.read.format("segstore").options(**named).load(str(path))


def told(frame: DataFrame) -> str:
    """What a query that must fail says."""
    with pytest.raises(Exception) as raised:
        frame.collect()
    return str(raised.value)


def as_record(row: Any) -> segstore.Record:
    """A row with headers as the engine gives the record."""
    headers = [(pair.key, _bytes(pair.value)) for pair in row.headers or ()]
    assert row.headers is None or headers
    return segstore.Record(row.offset, as_ms(row.timestamp), _bytes(row.key), _bytes(row.value), headers)


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def as_ms(stamp: datetime) -> int:
    """PySpark gives local times."""
    return (stamp.astimezone(timezone.utc) - EPOCH) // timedelta(milliseconds=1)
