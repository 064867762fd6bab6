"""Spark jobs for large work on a store. They run on clusters too, if every worker sees the store's directory
under the same path.

On disk: see the docstring of each job. Threads: one, the caller's. PySpark and pyarrow are imported when they
are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from segstore.storage.finding import Finding
    from segstore.storage.staging import Adoption


def verify(spark: SparkSession, path: str | os.PathLike[str]) -> list[Finding]:
    """Run `segstore.check` on all executors, segment by segment, and return the findings, none if the store
    is sound.

    If `path` is the URI or directory of an archive, all its objects are read and checked, as `segstore
    archive verify` does. Raises StorageError if there is no store; ArchiveError if the archive can't be
    reached.
    """
    from segstore.spark.job_tasks import verify

    return verify(spark, path)


def latest(
    spark: SparkSession, path: str | os.PathLike[str], topic: str, *, tombstones: bool = False
) -> DataFrame:
    """Return the newest record of each key: key, value, headers, timestamp, partition, offset.

    Left out are keys whose newest value is null (unless `tombstones`), aborted records, and records without a
    key. Within a partition the record with the highest offset is the newest; if a key is in several
    partitions, the newest of these records is that with the latest timestamp. Raises the errors of the
    source.
    """
    from segstore.spark.job_tasks import latest

    return latest(spark, path, topic, tombstones)


def export(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str,
    to: str | os.PathLike[str],
    *,
    mode: str = "errorifexists",
    **options: object,
) -> None:
    """Write a topic's committed records as Parquet, with all columns of the source, in one directory for each
    day (UTC) of their timestamps: `to`/day=2013-01-31/.

    Records without a timestamp go to the directory with Spark's name for null. `to` is any path that Spark
    can write, `mode` that of DataFrameWriter; `options` are the source's options, such as
    startingTimestamp=ms. Raises the errors of Spark and of the source.
    """
    from segstore.spark.job_tasks import export

    export(spark, path, topic, to, mode, options)


def reprocess(
    spark: SparkSession,
    path: str | os.PathLike[str],
    source: str,
    target: str,
    function: Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table | None],
    *,
    job_id: str | None = None,
    **options: object,
) -> Adoption | None:
    """Append the rows that `function` makes of the records of topic `source` to topic `target`: all rows or
    none, and once for a `job_id`. Return an `Adoption` with the written offsets, or None if
    there are no rows.

    `function` takes a batch with the columns of the source (headers too) and returns rows with columns of the
    sink: a batch, a Table, several batches or Tables, or None. `function` runs in Spark's tasks; rows don't
    pass through the JVM. The column `partition` of the returned rows chooses the partition, as in the sink;
    without this column the key does. Records of a source partition keep their order. `options` are the
    source's options, such as minPartitions=8; only committed records are read. Raises the errors of source
    and sink.
    """
    from segstore.spark.job_tasks import reprocess

    return reprocess(spark, path, source, target, function, job_id, options)
