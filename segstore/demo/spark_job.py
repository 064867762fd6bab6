"""The driver of the demo's stream: counts flights per airline and hour as they come, exactly once.

On disk: a store, through the engine: the topic that the query writes, and its checkpoints in another topic.
Threads: one, beside those of the store, the server of checkpoints and Spark.

It is a process of its own: `python -m segstore.demo.spark_job JSON`, the fields of a `Job`. It prints what
happens on standard output, a JSON object a line; messages of Spark and Java go to standard error.
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
"""The query's directory among the checkpoints."""
_FLIGHT = "carrier string, dep_delay int"
_HOUR_MS = 3_600_000
_LOOK = 0.1  # seconds between two looks at the progress

Tell = Callable[..., None]


@dataclass(frozen=True)
class Job:
    """The store's `path`; `rows` of a micro-batch; `late_hours`: how much older than the newest flight that
    was seen one may be that still comes. `work`: a directory for what Spark and Java leave lying about.
    """

    path: str
    rows: int
    late_hours: int
    work: str


def delays(rows: DataFrame, late_hours: int) -> DataFrame:
    """Of rows of the source, a row for each airline and hour in which it had flights, once the hour is over:
    `late_hours` after its end. `key` the airline, `timestamp` the hour's begin, `value` JSON: `flights`, how
    many `left`, and the minutes of `delay` of these, in all and at `most`.
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
    """The query, from where its checkpoint is to where the log ends now."""
    read = spark.readStream.format("segstore").schema("value binary, timestamp timestamp")
    read = read.option("subscribe", f"{SOURCE},{HEARTBEATS}").option("startingOffsets", "earliest")
    frame = delays(read.option("maxOffsetsPerTrigger", rows).load(path), late_hours)
    write = frame.writeStream.format("segstore").option("topic", TARGET)
    return write.option("checkpointLocation", ck.url(QUERY)).trigger(availableNow=True).start(path)


def heartbeat(store: segstore.Store, late_hours: int) -> None:
    """A record without a flight, so late that all hours are over: without it the last would stay open for
    ever, for nobody knows that no more flights come. Once: a second call does nothing.
    """
    log = store.partition(HEARTBEATS)
    if log.end_offset == 0:
        logs = [store.partition(SOURCE, p) for p in store.topics()[SOURCE].partition_ids]
        newest = max(at.read(at.end_offset - 1)[-1].timestamp for at in logs if at.end_offset)
        log.append(None, timestamp=newest + (late_hours + 2) * _HOUR_MS)


def run(job: Job, tell: Tell) -> None:
    """Run the whole query: the flights, then the heartbeat. Raises SegstoreError, and Spark's own errors."""
    options = f'"-Djava.io.tmpdir={job.work}" -XX:-UsePerfData'
    conf = {"spark.local.dir": job.work, "spark.driver.extraJavaOptions": options}
    spark = session("local[2]", quick=True, spark_sql_shuffle_partitions=2, spark_driver_memory="1g", **conf)
    spark.sparkContext.setLogLevel("ERROR")
    tell("session", version=spark.version)
    with segstore.open(job.path) as store, checkpoints(store) as ck:
        ck.configure(spark, rocksdb=True)
        _follow(start(spark, ck, job.path, job.rows, job.late_hours), tell)
        heartbeat(store, job.late_hours)
        tell("heartbeat")
        _follow(start(spark, ck, job.path, job.rows, job.late_hours), tell)
    tell("done")
    spark.stop()


def _follow(query: StreamingQuery, tell: Tell) -> None:
    """Tell each micro-batch until the query ends. StreamingQueryException; StorageError: some were late."""
    told, ended = -1, False
    while not ended:
        ended = bool(query.awaitTermination(_LOOK))
        for progress in query.recentProgress:
            if progress["batchId"] > told:
                told = progress["batchId"]
                tell("batch", **_batch(progress))


def _batch(progress: Any) -> dict[str, Any]:
    """What a micro-batch did, in numbers; `windows` were written, `open` ones are kept."""
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


def tell(event: str, **fields: Any) -> None:
    """A line in one piece: Java has the same standard output, and may have a line to say too."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def main(text: str) -> int:
    """`text`: a Job as JSON."""
    try:
        find_java()
        run(Job(**json.loads(text)), tell)
    except JavaNotFoundError as error:
        tell("missing", error=str(error))
    except (SegstoreError, PySparkException) as error:
        sys.stderr.write(f"{error}\n")
        tell("failed", error=next(iter(str(error).splitlines()), repr(error)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
