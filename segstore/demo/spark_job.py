"""The Spark driver of the demo's streaming query. The query counts the flights of each airline in each hour,
each flight exactly once.

On disk: writes the topic of the result, and another topic with the query's checkpoints, through the engine.
Threads: one, and the threads of the store, the checkpoint server and Spark. The driver is run in a process of
its own as `python -m segstore.demo.spark_job JSON`; the JSON object has the fields of a `Job`. The driver
prints its events on standard output, each as a line with a JSON object; messages of Spark and Java go to
standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

import segstore
from segstore.errors import JavaNotFoundError, SegstoreError, StorageError
from segstore.spark import checkpoints, session
from segstore.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from segstore.spark.checkpointing import Checkpoints

SOURCE, HEARTBEATS, TARGET = "flights", "heartbeats", "delays"
QUERY = "delays"
"""The name of the query's directory in the checkpoint topic."""
_FLIGHT = "carrier string, dep_delay int"
_HOUR_MS = 3_600_000
_LOOK = 0.1  # time between two checks of the query's progress, in seconds

Report = Callable[..., None]


@dataclass(frozen=True)
class Job:
    """The arguments of the driver. `path` is the path of the store. `rows` is the number of rows in a
    micro-batch. `late_hours` is the watermark's delay: a flight is counted only if it is at most this number
    of hours older than the newest flight that was read. `work` is a directory for temporary files of Spark
    and Java. If `waits`, the driver opens the store only when it has read a line from its standard input.
    `archive` is the URI of an archive, whose flights are counted at the end; "" if there is no archive.
    """

    path: str
    rows: int
    late_hours: int
    work: str
    waits: bool = False
    archive: str = ""


def delays(rows: DataFrame, late_hours: int) -> DataFrame:
    """Return the aggregation of the source's rows: one row for each airline and each hour in which the
    airline has flights. The row is written when a flight is read that is `late_hours` later than the end of
    the hour. The row's `key` is the airline, and its `timestamp` is the beginning of the hour. The row's
    `value` is a JSON object: `flights` is the number of flights, and `left` is the number of flights that
    were not cancelled. `delay` is the sum of the delays in minutes, and `most` is the longest delay.
    """
    from pyspark.sql import functions as f

    flight = f.from_json(f.col("value").cast("string"), _FLIGHT).alias("flight")
    delay = f.col("flight.dep_delay")
    hours = (
        rows.select("timestamp", flight)
        .withWatermark("timestamp", f"{late_hours} hours")
        .groupBy(f.window("timestamp", "1 hour"), f.col("flight.carrier"))
        .agg(
            f.count("*").alias("flights"),
            f.count(delay).alias("left"),
            f.sum(delay).alias("delay"),
            f.max(delay).alias("most"),
        )
    )
    value = f.to_json(f.struct("flights", "left", "delay", "most"), {"ignoreNullFields": "false"})
    key, begin = f.col("carrier").alias("key"), f.col("window.start").alias("timestamp")
    return hours.select(key, value.alias("value"), begin)


def start(spark: SparkSession, ck: Checkpoints, path: str, rows: int, late_hours: int) -> StreamingQuery:
    """Start the query, and return it. It reads from the offsets in its checkpoint to the current ends of the
    logs.
    """
    read = spark.readStream.format("segstore").schema("value binary, timestamp timestamp")
    read = read.option("subscribe", f"{SOURCE},{HEARTBEATS}").option("startingOffsets", "earliest")
    frame = delays(read.option("maxOffsetsPerTrigger", rows).load(path), late_hours)
    write = frame.writeStream.format("segstore").option("topic", TARGET)
    return write.option("checkpointLocation", ck.url(QUERY)).trigger(availableNow=True).start(path)


def heartbeat(store: segstore.Store, late_hours: int) -> None:
    """Append a record that has no flight, and so late a timestamp that Spark writes the rows of all hours.
    Without this record the rows of the last hours would not be written, because Spark can't know that there
    are no more flights. A second call does nothing.
    """
    log = store.partition(HEARTBEATS)
    if log.end_offset == 0:
        logs = [store.partition(SOURCE, p) for p in store.topics()[SOURCE].partition_ids]
        newest = max(at.read(at.end_offset - 1)[-1].timestamp for at in logs if at.end_offset)
        log.append(None, timestamp=newest + (late_hours + 2) * _HOUR_MS)


def run(job: Job, report: Report) -> None:
    """Run the query over all flights, append the record of `heartbeat`, and run the query again. Raises
    SegstoreError and PySparkException.
    """
    options = f'"-Djava.io.tmpdir={job.work}" -XX:-UsePerfData'
    conf = {"spark.local.dir": job.work, "spark.driver.extraJavaOptions": options}
    spark = session("local[2]", quick=True, spark_sql_shuffle_partitions=2, spark_driver_memory="1g", **conf)
    spark.sparkContext.setLogLevel("ERROR")
    report("session", version=spark.version)
    if job.waits and not sys.stdin.readline():
        return  # the demo has exited
    with segstore.open(job.path) as store, checkpoints(store) as ck:
        ck.configure(spark, rocksdb=True)
        _follow(start(spark, ck, job.path, job.rows, job.late_hours), report)
        heartbeat(store, job.late_hours)
        report("heartbeat")
        _follow(start(spark, ck, job.path, job.rows, job.late_hours), report)
    if job.archive:
        report("archive", rows=archived(spark, job.archive))
    report("done")
    spark.stop()


def archived(spark: SparkSession, uri: str) -> int:
    """Return the number of flights in an archive."""
    return int(spark.read.format("segstore").option("subscribe", SOURCE).load(uri).count())


def _follow(query: StreamingQuery, report: Report) -> None:
    """Call `report` for each micro-batch until the query has stopped. Raises StreamingQueryException, and
    StorageError if rows came too late to be counted.
    """
    reported, ended = -1, False
    while not ended:
        ended = bool(query.awaitTermination(_LOOK))
        for progress in query.recentProgress:
            if progress["batchId"] > reported:
                reported = progress["batchId"]
                report("batch", **_batch(progress))


def _batch(progress: Any) -> dict[str, Any]:
    """Return the fields of a micro-batch's event, such as `windows`, the number of windows that were written,
    and `open`, the number of windows that were not written yet.
    """
    state = progress["stateOperators"][0]
    late = state["numRowsDroppedByWatermark"]
    if late:
        raise StorageError(f"micro-batch {progress['batchId']}: {late} rows came too late for their hours")
    ends = json.loads(progress["sources"][0]["endOffset"])
    return {
        "batch": progress["batchId"],
        "rows": progress["numInputRows"],
        "read": sum(ends[SOURCE].values()),
        "watermark": progress["eventTime"].get("watermark", ""),
        "windows": state["numRowsRemoved"],
        "open": state["numRowsTotal"],
        "ms": progress["durationMs"]["triggerExecution"],
    }


def report(event: str, **fields: Any) -> None:
    """Print an event as a line. The line is written by one call, because Java may print lines to the same
    standard output.
    """
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def main(text: str) -> int:
    """Run the job whose fields are in the JSON object `text`, and return the exit status."""
    try:
        find_java()
        run(Job(**json.loads(text)), report)
    except JavaNotFoundError as error:
        report("missing", error=str(error))
    except (SegstoreError, PySparkException) as error:
        sys.stderr.write(f"{error}\n")
        report("failed", error=next(iter(str(error).splitlines()), repr(error)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
