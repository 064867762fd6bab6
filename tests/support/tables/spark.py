"""The only SparkSession of a test run, and helpers for tests of Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from places import REPOSITORY, environment

from segstore.errors import SegstoreError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession, types

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
FAST_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Yield the session. Tests must not stop it, and must restore settings that they change, since others use
    it too.
    """
    pytest.importorskip("pyspark", "4.2", reason="PySpark 4.2 or newer is not installed")
    from segstore.spark import session
    from segstore.spark.java import find_java

    try:
        find_java()
    except SegstoreError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as environ:
        # Spark's Python workers need the modules of tests, since functions are sent to them by name.
        environ.setenv("PYTHONPATH", environment(str(REPOSITORY))["PYTHONPATH"])
        made = session(
            "local[2]",
            quick=True,
            spark_sql_shuffle_partitions=2,
            spark_sql_streaming_checkpointFileManagerClass=FAST_CHECKPOINTS,
            spark_driver_memory="1g",
            spark_sql_python_filterPushdown_enabled=True,
        )
    yield made
    made.stop()


def read(spark: SparkSession, path: Path | str, **options: Any) -> DataFrame:
    """Return a DataFrame of a whole store, or of what `options` say: `kafka_isolation_level` stands for
    kafka.isolation.level.
    """
    if not {"subscribe", "subscribePattern", "assign"} & options.keys():
        options["subscribePattern"] = ".*"
    named = {name.replace("_", "."): value for name, value in options.items()}
    return spark.read.format("segstore").options(**named).load(str(path))


def told(run: Callable[[], Any]) -> str:
    """Return the message of a query that must fail."""
    with pytest.raises(Exception) as raised:
        run()
    return str(raised.value)


class Row(NamedTuple):
    """A row with all columns; `timestamp` is in ms, `headers` is None or a list that is not empty."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    timestampType: int


def rows(frame: DataFrame) -> list[Row]:
    """Return all rows, in order of topic, partition and offset. The frame must have headers."""
    table = frame.toArrow()
    stamps = table.column("timestamp").cast("timestamp[us]").cast("int64").to_pylist()
    assert all(stamp % 1000 == 0 for stamp in stamps)
    held = table.drop_columns(["timestamp"]).to_pylist()
    return sorted(_row(row, stamp // 1000) for row, stamp in zip(held, stamps, strict=True))


def _row(row: dict[str, Any], ms: int) -> Row:
    headers = row["headers"]
    assert headers is None or headers
    pairs = None if headers is None else [(pair["key"], pair["value"]) for pair in headers]
    place = row["topic"], row["partition"], row["offset"]
    return Row(*place, ms, row["key"], row["value"], pairs, row["timestampType"])


def schema(*names: str, **others: Any) -> types.StructType:
    """Return a schema, without a JVM: columns of the source by name, and others with their types."""
    from pyspark.sql import types

    kinds = {
        "key": types.BinaryType(),
        "value": types.BinaryType(),
        "topic": types.StringType(),
        "partition": types.IntegerType(),
        "offset": types.LongType(),
        "timestamp": types.TimestampType(),
    }
    made = types.StructType()
    for name in names or ("topic", "partition", "offset", "timestamp"):
        made.add(name, kinds[name])
    for name, kind in others.items():
        made.add(name, kind)
    return made
