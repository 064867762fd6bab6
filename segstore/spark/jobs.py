"""Spark jobs that process a whole topic or store. They also run on a cluster, if every worker has access to
the store's directory under the same path.

On disk: the docstring of each job describes this. Threads: one, the caller's. PySpark and pyarrow are
imported when they are first used.
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
    """Do the checks of `segstore.check` on all executors, segment by segment, and return the findings; the
    list is empty if there is no damage.

    If `path` is the URI or the directory of an archive, all objects of the archive are read and checked, as
    the command `segstore archive verify` does. Raises StorageError if there is no store, and ArchiveError if
    the archive can't be reached.
    """
    from segstore.spark.job_tasks import verify

    return verify(spark, path)


def latest(
    spark: SparkSession, path: str | os.PathLike[str], topic: str, *, tombstones: bool = False
) -> DataFrame:
    """Return a DataFrame with the newest record of each key: key, value, headers, timestamp, partition,
    offset.

    Aborted records and records without a key are ignored. A key whose newest value is null is omitted, unless
    `tombstones` is True. In a partition, the newest record of a key is the one with the highest offset. If
    several partitions have the key, the newest of these records is the one with the latest timestamp. Raises
    the errors of the source.
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
    """Write a topic's committed records as Parquet, with all columns of the source. There is one directory
    for each day (in UTC) of the records' timestamps, for example `to`/day=2013-01-31/.

    Records without a timestamp are written to a directory whose name has Spark's word for null. `to` is any
    path to which Spark can write. `mode` is as in Spark's DataFrameWriter. `options` are options of the
    source, such as startingTimestamp=ms. Raises the errors of Spark and of the source.
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
    """Call `function` with the records of the topic `source`, and append the rows that it returns to the
    topic `target`: all rows or none. If the job is repeated with the same `job_id`, its rows are not appended
    again. Return an `Adoption`, which has the written offsets; None if there are no rows.

    `function` gets a batch with the columns of the source, including headers. It returns rows with columns of
    the sink: a batch, a Table, an iterable of batches, or None. It is called in Spark's tasks, and rows do
    not pass through the JVM. If the returned rows have a column `partition`, it chooses the partition, as in
    the sink; else the key does. Records of a source partition keep their order. `options` are options of the
    source, such as minPartitions=8. Only committed records are read. Raises the errors of the source and of
    the sink.
    """
    from segstore.spark.job_tasks import reprocess

    return reprocess(spark, path, source, target, function, job_id, options)
