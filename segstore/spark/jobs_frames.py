"""`latest` and `export`: DataFrames over the source. On disk: `export` writes where it is told to, through
Spark; nothing else. Threads: one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COMMITTED = {"kafka.isolation.level": "read_committed", "includeHeaders": "true"}


def source_options(path: str | os.PathLike[str], topic: str, options: dict[str, Any]) -> dict[str, Any]:
    """All that is committed of a topic, or what `options` of the source say."""
    return {**_COMMITTED, **options, "subscribe": topic, "path": os.path.abspath(os.fsdecode(path))}


def _read(
    spark: SparkSession, path: str | os.PathLike[str], topic: str, options: dict[str, Any]
) -> DataFrame:
    return spark.read.format("segstore").options(**source_options(path, topic, options)).load()


def latest(spark: SparkSession, path: str | os.PathLike[str], topic: str, tombstones: bool) -> DataFrame:
    """See `segstore.spark.latest`."""
    from pyspark.sql import functions as f

    rows = _read(spark, path, topic, {}).where("key is not null")
    carried = ["value", "headers", "timestamp", "partition", "offset"]
    # Within a partition the offset decides, whatever the stamps say; only what comes first is shuffled.
    newest = rows.groupBy("key", "partition").agg(f.max_by(f.struct(*carried), "offset").alias("row"))
    order = f.struct("row.timestamp", "row.partition")
    one = newest.groupBy("key").agg(f.max_by("row", order).alias("row")).select("key", "row.*")
    return one if tombstones else one.where("value is not null")


def export(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str,
    to: str | os.PathLike[str],
    mode: str,
    options: dict[str, Any],
) -> None:
    """See `segstore.spark.export`."""
    from pyspark.sql import functions as f

    rows = _read(spark, path, topic, options)
    ms = f.unix_millis("timestamp")
    # Of UTC, whatever the session's time zone is.
    day = f.when(ms >= 0, f.date_from_unix_date(f.floor(ms / 86_400_000).cast("int")))
    rows.withColumn("day", day).write.mode(mode).partitionBy("day").parquet(os.fsdecode(to))
