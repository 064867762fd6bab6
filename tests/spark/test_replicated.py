"""Spark reads and writes a replicated store, by one of its directories and by all of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from replicated_stores import PATIENT, Directories, Writer, await_in_sync, found
from spark import read
from stores import values
from waiting import until

import segstore
from segstore import spark as jobs
from segstore.spark import checkpoint, checkpoints, restore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.judge("spark"), pytest.mark.kind("Spark")]


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


def test_a_query_reads_all_directories_beside_another_process(spark: SparkSession, tmp_path: Path) -> None:
    """Also when a disk is taken away between plan and task; the ends of the query stay what they were."""
    three = Directories(tmp_path)
    with three.open(**PATIENT) as store:
        store.create_topic("t", assignments={n: [n, (n + 1) % 3] for n in range(3)})
        for number in range(3):
            store.partition("t", number).append_batch([b"%d" % each for each in range(50)])
        await_in_sync(store)
        frame = read(spark, ":".join(map(str, three.paths)), subscribe="t").select("partition", "offset")
        expected = [(number, each) for number in range(3) for each in range(50)]
        assert sorted(tuple(row) for row in frame.collect()) == expected
        three.lose(1)
        until(lambda: 1 in store.describe_partition("t", 1).offline)
        store.partition("t", 1).append(b"of another leader", acks=1)
        assert sorted(tuple(row) for row in frame.collect()) == expected
        three.bring_back()


class Seen(dict[int, list[tuple[int, bytes]]]):
    """What each micro-batch brought, by its number: one that is repeated brings the same."""

    def __call__(self, frame: Any, batch: int) -> None:
        rows = sorted((row.offset, bytes(row.value)) for row in frame.collect())
        assert self.setdefault(batch, rows) == rows

    @property
    def rows(self) -> list[tuple[int, bytes]]:
        return sorted(row for rows in dict(self).values() for row in rows)


def started(spark: SparkSession, path: str, where: str, seen: Seen) -> StreamingQuery:
    frame = spark.readStream.format("segstore").options(subscribe="t", startingOffsets="earliest").load(path)
    made = frame.select("offset", "value").writeStream.foreachBatch(seen)
    return made.option("checkpointLocation", where).start()


def await_rows(query: StreamingQuery, seen: Seen, count: int) -> None:
    until(lambda: len(seen.rows) >= count or query.exception())
    assert query.exception() is None


def test_a_stream_over_a_failover(spark: SparkSession, tmp_path: Path) -> None:
    """Its checkpoint is a log of the same store, and both go on when the disk of their leaders is lost; then
    it is begun anew.
    """
    three, seen = Directories(tmp_path), Seen()
    with three.open(min_insync_replicas=2, default_replication_factor=3, **PATIENT) as store:
        store.create_topic("t")
        log, path = store.partition("t", 0), ":".join(map(str, three.paths))
        with checkpoints(store) as ck, Writer(log, pause=0.05) as writer:
            query = started(spark, path, ck.url("q", "webhdfs"), seen)
            try:
                await_rows(query, seen, 10)
                lost = store.describe_partition("t", 0).leader
                three.lose(lost)
                until(lambda: store.describe_partition("t", 0).leader not in (-1, lost))
                writer.more()
                await_rows(query, seen, log.end_offset)
            finally:
                query.stop()
            writer.more()
            query = started(spark, path, ck.url("q", "webhdfs"), seen)
            try:
                await_rows(query, seen, log.end_offset)
            finally:
                query.stop()
        assert store.describe_partition("checkpoints", 0).leader != lost
        assert dict(seen.rows).items() <= found(log).items()
        assert [offset for offset, _ in seen.rows] == list(range(len(seen.rows)))
        writer.assert_kept(log)
        three.bring_back()


def test_frames_are_kept_in_a_replicated_store(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(1000).selectExpr("id", "concat('v', id) text")
    two = Directories(tmp_path, 2, witness=True)
    with two.open(default_replication_factor=2, **PATIENT) as store:
        kept = checkpoint(frame, store, "kept")
        assert sorted(kept.collect()) == sorted(frame.collect())
        bad = spark.sql("select raise_error('no luck') x from range(10)")
        with pytest.raises(Exception, match="no luck"):
            checkpoint(bad, store, "bad")
        assert "bad" not in store.topics()
        await_in_sync(store)
        two.lose(0)
        until(lambda: 0 in store.describe_partition("kept", 0).offline)
        assert sorted(restore(spark, store, "kept").collect()) == sorted(frame.collect())
        two.bring_back()


def test_jobs_take_all_directories(spark: SparkSession, tmp_path: Path) -> None:
    three = Directories(tmp_path)
    path = ":".join(map(str, three.paths))
    with three.open(**PATIENT) as store:
        store.create_topic("t", assignments={0: [0, 1], 1: [1, 2]})
        store.create_topic("to", assignments={0: [2, 0]})
        for number in range(2):
            store.partition("t", number).append_batch([b"%d" % number] * 5, keys=[b"%d" % number] * 5)
        await_in_sync(store)
        done = jobs.reprocess(spark, path, "t", "to", lambda batch: batch.select(["key", "value"]))
        assert done is not None
        assert done.records == 10
        assert sorted(held(store, "to")) == [b"0"] * 5 + [b"1"] * 5
        assert jobs.latest(spark, path, "t").count() == 2
        await_in_sync(store)
    assert jobs.verify(spark, path) == []
    log = three.paths[2] / "to-0" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:-1])
    assert {finding.path for finding in jobs.verify(spark, path)} >= {str(log)}


def held(store: Any, topic: str) -> list[bytes | None]:
    logs = [store.partition(topic, number) for number in store.topics()[topic].partition_ids]
    return [value for log in logs for value in values(log, isolation_level="read_committed")]
