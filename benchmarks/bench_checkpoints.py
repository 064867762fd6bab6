"""Micro-batches of a stateful query with its checkpoint in a store, against one in a plain directory.

RocksDB with changelog, 500 keys in 2 partitions, 33 batches of which the first 3 are left out, medians; the
sides take turns. Spark syncs none of the files of a plain directory: the equal of that is sync="none". The
line beside it has the store's default, one fsync a batch, against the same. The second target has the
FileSystem-based checkpoint file manager on both sides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from harness import Results

import segstore
from segstore.spark import checkpoints, session

pytest.importorskip("pyspark")

BATCHES, LEFT_OUT, ROUNDS = 33, 3, 3
MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
BY = "org.apache.spark.sql.execution.streaming.checkpointing."
BY_FILE_SYSTEM, BY_CONTEXT = (
    f"{BY}FileSystemBasedCheckpointFileManager",
    f"{BY}FileContextBasedCheckpointFileManager",
)
ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    made = session("local[2]", spark_sql_shuffle_partitions=2, spark_driver_memory="1g", **ROCKSDB)
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


def micro_batch(spark: Any, location: str, batches: int = BATCHES) -> float:
    """Median milliseconds of a micro-batch."""
    options = {"rowsPerBatch": 1000, "numPartitions": 2}
    rows = spark.readStream.format("rate-micro-batch").options(**options).load()
    counts = rows.selectExpr("value % 500 as k").groupBy("k").count()
    writer = counts.writeStream.format("noop").outputMode("update").option("checkpointLocation", location)
    took: dict[int, int] = {}
    query = writer.start()
    try:
        while len(took) < batches:
            assert query.exception() is None
            took |= {p["batchId"]: p["durationMs"]["triggerExecution"] for p in query.recentProgress}
            time.sleep(0.05)
    finally:
        query.stop()
    return median(took[batch] for batch in range(LEFT_OUT, batches))


def turns(*runs: Callable[[int], float]) -> list[list[float]]:
    """What each gives, one after the other, ROUNDS times."""
    found: list[list[float]] = [[] for _ in runs]
    for number in range(ROUNDS):
        for figures, run in zip(found, runs, strict=True):
            figures.append(run(number))
    return found


@pytest.mark.parametrize("manager", ["default", "FileSystem"])
def test_micro_batch(
    benchmark: Any, results: Results, spark: Any, store: segstore.Store, tmp_path: Path, manager: str
) -> None:
    if manager == "FileSystem":
        spark.conf.set(MANAGER, BY_FILE_SYSTEM)
    else:
        spark.conf.unset(MANAGER)
    figures: list[list[float]] = []
    with checkpoints(store, "a", sync="none") as unsynced, checkpoints(store, "b", sync="batch") as synced:
        unsynced.configure(spark)

        def all_of_it() -> None:
            micro_batch(spark, (tmp_path / "warm").as_uri(), 12)
            micro_batch(spark, unsynced.url("warm"), 12)
            figures[:] = turns(
                lambda n: micro_batch(spark, (tmp_path / f"q{n}").as_uri()),
                lambda n: micro_batch(spark, unsynced.url(f"q{n}")),
                lambda n: micro_batch(spark, synced.url(f"q{n}")),
            )

        benchmark.pedantic(all_of_it, rounds=1)
    plain, none, batch = figures
    target = 1.0 if manager == "FileSystem" else 0.85
    for name, ours in (("no fsync on both", none), ("fsync a batch against none", batch)):
        ratio = median(o / p for o, p in zip(ours, plain, strict=True))
        note = f"{min(ours):.0f} of {min(plain):.0f} ms; {name}"
        results.add(benchmark, f"checkpoints, {manager} manager, {name}", ratio, target, "x", False, note)
