"""Spark reads a directory of a replicated store up to its high watermark, and writes into all of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from replicated_stores import PATIENT, Directories, await_in_sync
from spark import read
from stores import values
from waiting import until

import segstore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.judge("spark")


def test_a_directory_is_read_beside_its_writer(spark: SparkSession, tmp_path: Path) -> None:
    two = Directories(tmp_path, 2)
    with two.open(replica_lag_time_max_ms=600_000, broker_session_timeout_ms=600_000) as store:
        store.create_topic("t", assignments={0: [0, 1], 1: [1, 0]})
        for number in range(2):
            store.partition("t", number).append_batch([b"%d" % each for each in range(50)])
        await_in_sync(store)
        until(lambda: [ends(path) for path in two.paths] == [[50, 50], [50, 50]])
        two.files.hang(two.paths[1])
        store.partition("t", 0).append(b"not committed yet", acks=1)
        shown = [(number, each, b"%d" % each) for number in range(2) for each in range(50)]
        for path in two.paths:
            frame = read(spark, path, subscribe="t").select("partition", "offset", "value")
            assert sorted((p, o, bytes(v)) for p, o, v in frame.collect()) == shown
        two.files.mend()
        await_in_sync(store)
    assert [segstore.check(path) for path in two.paths] == [[], []]


def ends(path: Path) -> list[int]:
    """Where a reader of the directory finds the ends."""
    with segstore.open(path, mode="r") as reader:
        return [reader.partition("t", number).end_offset for number in range(2)]


def test_the_sink_writes_into_all_partitions_from_any_directory(spark: SparkSession, tmp_path: Path) -> None:
    """A batch beside the writer, which is committed once, though a directory is lost before it is run again;
    a stream whose commits open the store.
    """
    three = Directories(tmp_path)
    rows = spark.createDataFrame([(f"k{n}", f"v{n}") for n in range(40)], "key string, value string")

    def write(path: Path) -> None:
        made = rows.write.format("segstore").mode("append").option("topic", "t").option("jobId", "job")
        made.save(str(path))

    with three.open(min_insync_replicas=2, **PATIENT) as store:
        store.create_topic("t", 2, replication_factor=3)
        store.create_topic("s", assignments={0: [1, 2]})
        write(three.paths[0])
        first = held(store, "t")
        assert sorted(first) == sorted(b"v%d" % n for n in range(40))
        await_in_sync(store)
        three.lose(0)
        until(lambda: 0 in store.describe_partition("t", 0).offline)
        write(three.paths[1])
        assert held(store, "t") == first
    source = tmp_path / "source"
    rows.write.json(str(source))
    query = (
        spark.readStream.schema("key string, value string")
        .json(str(source))
        .writeStream.format("segstore")
        .option("topic", "s")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(":".join(map(str, three.paths)))
    )
    query.awaitTermination()
    assert query.exception() is None
    three.bring_back()
    with three.open() as store:
        await_in_sync(store)
        assert sorted(held(store, "s")) == sorted(first)
        assert held(store, "t") == first
    assert [segstore.check(path) for path in three.paths] == [[], [], []]


def held(store: Any, topic: str) -> list[bytes | None]:
    logs = [store.partition(topic, number) for number in store.topics()[topic].partition_ids]
    return [value for log in logs for value in values(log, isolation_level="read_committed")]
