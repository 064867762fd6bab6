"""`df.write` and `df.writeStream` with format("segstore"), run by Spark: rows, types, bad input, other
writers.
"""

from __future__ import annotations

import fcntl
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", "4.2")

import faults
from partitions import broker_roots
from pyspark.sql.functions import concat, lit
from spark import read, rows, told
from staging import left_in_inbox, unsynced
from stores import START_MS, records, values
from waiting import PATIENCE

import segstore
from segstore.records import CODECS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.judge("spark"), pytest.mark.kind("Spark")]


def write(frame: DataFrame, path: Path | str, **options: Any) -> None:
    frame.write.format("segstore").mode("append").options(**options).save(str(path))


# --- round trips ----------------------------------------------------------------------------


def piece(rng: random.Random) -> bytes | None:
    return rng.choice((None, b"", rng.randbytes(rng.randrange(1, 50)), b"a" * 30))


def test_what_was_read_is_written_as_it_was(
    spark: SparkSession, store_dir: Path, tmp_path: Path, rng: Any
) -> None:
    """From one store into another, in the same partitions, each topic by its own codec."""
    with segstore.open(tmp_path / "from") as source, segstore.open(store_dir) as target:
        for codec in CODECS:
            source.create_topic(codec, 2)
            target.create_topic(codec, 2, {"compression.type": codec})
            for partition in range(2):
                n = rng.randrange(1, 400)
                headers = [[("hé", piece(rng)) for _ in range(rng.choice((0, 0, 1, 3)))] for _ in range(n)]
                source.partition(codec, partition).append_batch(
                    [piece(rng) for _ in range(n)],
                    keys=[piece(rng) for _ in range(n)],
                    headers=headers,
                    timestamps=[rng.choice((-1, START_MS - rng.randrange(10**6))) for _ in range(n)],
                )
        write(read(spark, tmp_path / "from", includeHeaders=True), store_dir)
        assert left_in_inbox(store_dir) == []
    expected = rows(read(spark, tmp_path / "from", includeHeaders=True))
    assert rows(read(spark, store_dir, includeHeaders=True)) == expected
    with segstore.open(store_dir, "r") as reader:
        for number, codec in enumerate(CODECS):
            found = reader.partition(codec, 0).read(0)
            assert set((found.batches["attributes"] & 7).tolist()) == {number}


def test_what_a_broker_wrote_is_written_as_it_was(
    spark: SparkSession, store_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every fixture: aborted transactions, gaps after compaction and all; only the offsets are new ones."""
    expected: dict[tuple[str, int], list[Any]] = {}
    roots = broker_roots(tmp_path_factory)
    with segstore.open(store_dir) as target:
        for number, (root, sources) in enumerate(roots.items()):
            for source in sources:
                topic, _, partition = source.path.name.rpartition("-")
                name = f"{topic}-{number}"
                if name not in target.topics():
                    there = [o.path.name.rpartition("-") for o in sources]
                    target.create_topic(name, 1 + max(int(p) for of, _, p in there if of == topic))
                held = [(r.timestamp, r.key, r.value, r.headers or None) for r in source.expected()]
                expected[name, int(partition)] = held
            frame = read(spark, root, includeHeaders=True)
            write(frame.withColumn("topic", concat("topic", lit(f"-{number}"))), store_dir)
    assert len(expected) >= 16
    found: dict[tuple[str, int], list[Any]] = {key: [] for key in expected}
    for row in rows(read(spark, store_dir, includeHeaders=True)):
        found[row.topic, row.partition].append((row.timestamp, row.key, row.value, row.headers))
    assert found == expected


def test_strings_nulls_and_the_time_of_the_write(spark: SparkSession, store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
    frame = spark.sql(
        "select * from values ('k', 'vé', null, timestamp_millis(5)), (null, null, null, null) "
        "as (key, value, partition, timestamp)"
    ).selectExpr("key", "value", "cast(partition as int) partition", "timestamp")
    write(frame.coalesce(1), store_dir, topic="t")
    with segstore.open(store_dir, "r") as reader:
        first, second = reader.partition("t").read(0)
        assert first[1:4] == (5, b"k", "vé".encode())
        assert second[2:4] == (None, None)
        assert second.timestamp > START_MS


def test_an_empty_frame_and_one_without_partitions(spark: SparkSession, store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        write(spark.range(0).selectExpr("string(id) value"), store_dir, topic="t")
        write(spark.createDataFrame([], "value string"), store_dir, topic="t")
        assert store.partition("t").end_offset == 0


def test_a_job_that_is_run_again_under_its_id(spark: SparkSession, store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t", 3)
    frame = spark.range(40).selectExpr("string(id) key", "string(id) value")
    for job in ("a", "a", "b"):
        write(frame, store_dir, topic="t", jobId=job)
    found = [row.value for row in rows(read(spark, store_dir, includeHeaders=True))]
    assert sorted(found) == sorted(b"%d" % i for i in [*range(40)] * 2)


def test_a_job_that_fails_writes_nothing(spark: SparkSession, store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
    frame = spark.range(0, 40, 1, 2).selectExpr("string(id) value")
    broken = frame.selectExpr("if(value = '17', raise_error('row 17'), value) value")
    assert "row 17" in told(lambda: write(broken, store_dir, topic="t"))
    assert "topic 't' has partitions 0 to 0" in told(
        lambda: write(frame.selectExpr("value", "1 partition"), store_dir, topic="t")
    )
    with segstore.open(store_dir) as store:
        assert store.partition("t").end_offset == 0


BAD: dict[str, tuple[dict[str, str], str, tuple[str, ...]]] = {
    "missing path": ({"path": "/no/such/store"}, "", ("option path='/no/such/store'", 'mode="rw" makes it')),
    "no such topic": ({"topic": "u"}, "", ("option topic: no topic 'u'; there are: from, t", "create_topic")),
    "no topic": ({"topic": ""}, "", ("option topic=''",)),
    "an unknown option": ({"topicc": "t"}, "", ("option topicc is unknown", "did you mean topic?")),
    "a broker": ({"kafka.bootstrap.servers": "h:1"}, "", ("kafka.bootstrap.servers", "leave it out")),
    "a bad timeout": ({"sealTimeout": "soon"}, "", ("option sealTimeout='soon'", "10s")),
    "a column of the wrong type": (
        {},
        "id as value",
        ("value is bigint", "binary or string; cast it"),
    ),
    "another column": ({}, "id, value", ("column 'id' can't be written", "drop it")),
    "locked by a broker": (
        {},
        "",
        ("option path=", "directory locked as a Kafka broker", "stop it"),
    ),
}


@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "stream"])
def test_bad_input_is_told_before_tasks_start(
    spark: SparkSession, store_dir: Path, tmp_path: Path, streaming: bool
) -> None:
    begin(store_dir, 10)
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.delete_topic("to")
    started = StartedJobs(spark)
    assert read(spark, store_dir, subscribe="from").count() == 10
    assert started.since() > 0
    for name, (options, columns, said) in BAD.items():
        given = {"path": str(store_dir), "topic": "t", **options}
        with locked_by_a_broker(store_dir) if "locked" in name else nullcontext():
            messages = refused(spark, tmp_path / name, given, columns, streaming)
        assert [part for part in said if part not in messages] == [], (name, messages)
    with segstore.open(store_dir) as store:
        assert store.partition("t").end_offset == 0
        assert left_in_inbox(store_dir) == []


def refused(spark: SparkSession, work: Path, given: dict[str, str], columns: str, streaming: bool) -> str:
    """What a write of Spark's own rows is told. No job was started for it."""
    started = StartedJobs(spark)
    new = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10)
    frame = new.load().withColumnRenamed("value", "id") if streaming else spark.range(10)
    frame = frame.selectExpr("id", "string(id) as value")
    frame = frame.selectExpr(*columns.split(", ")) if columns else frame.select("value")
    if not streaming:
        message = told(lambda: frame.write.format("segstore").mode("append").options(**given).save())
    else:
        sink = frame.writeStream.format("segstore").options(**given)
        sink = sink.option("checkpointLocation", str(work)).trigger(availableNow=True)
        message = told(lambda: sink.start().awaitTermination(2 * PATIENCE))
    assert started.since() == 0, message
    return message


class StartedJobs:
    """Counts the jobs that the session starts."""

    def __init__(self, spark: SparkSession) -> None:
        self._next = spark._jsc.sc().dagScheduler().nextJobId
        self._before = int(self._next())

    def since(self) -> int:
        return int(self._next()) - self._before


@contextmanager
def locked_by_a_broker(path: Path) -> Iterator[None]:
    """Java's lock is one of the process, as `lockf`."""
    (locked, tell_locked), (over, tell_over) = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        os.close(tell_over)
        with open(path / ".lock", "w") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            os.write(tell_locked, b"x")
            os.read(over, 1)
        os._exit(0)
    try:
        os.read(locked, 1)
        yield
    finally:
        os.close(tell_over)
        os.waitpid(pid, 0)


# --- streams --------------------------------------------------------------------------------


def begin(path: Path, records: int) -> None:
    """Topics "from", of which partition i % 2 holds value i, and "to"."""
    with segstore.open(path, files=unsynced(faults.HookedFiles())) as store:
        store.create_topic("from", 2)
        store.create_topic("to", 3)
        fill(store, range(records))


def fill(store: segstore.Store, numbers: range) -> None:
    for partition in range(2):
        mine = [b"%d" % i for i in numbers if i % 2 == partition]
        store.partition("from", partition).append_batch(mine, keys=mine)


def stream(spark: SparkSession, path: Path, checkpoint: Path, limit: int, tag: str) -> StreamingQuery:
    """From "from" to "to" until all is read, with `tag` before each value."""
    given = {"subscribe": "from", "startingOffsets": "earliest", "maxOffsetsPerTrigger": limit}
    frame = spark.readStream.format("segstore").options(**given).load(str(path))
    frame = frame.selectExpr("key", f"concat('{tag} ', string(value)) as value")
    sink = frame.writeStream.format("segstore").options(topic="to", checkpointLocation=str(checkpoint))
    return sink.trigger(availableNow=True).start(str(path))


def test_two_queries_and_an_application_append_at_once(
    spark: SparkSession, store_dir: Path, tmp_path: Path
) -> None:
    """Each row once from each; the application's, and those of a query in a partition, in their order."""
    begin(store_dir, 200)
    with segstore.open(store_dir) as store:
        queries = [stream(spark, store_dir, tmp_path / name, limit=50, tag=name) for name in ("one", "two")]
        own = 0
        while any(query.isActive for query in queries):
            store.partition("to", own % 3).append(b"app %d" % own)
            own += 1
        assert all(query.awaitTermination(2 * PATIENCE) for query in queries)
    held: dict[bytes, list[int]] = {b"one": [], b"two": [], b"app": []}
    with segstore.open(store_dir, "r") as reader:
        for p in range(3):
            mine: dict[bytes, list[int]] = {name: [] for name in held}
            for value in values(reader.partition("to", p)):
                name, number = (value or b"").split()
                mine[name].append(int(number))
            assert mine[b"app"] == sorted(mine[b"app"])
            for name, numbers in mine.items():
                for half in range(2):  # of the query's partitions
                    part = [n for n in numbers if n % 2 == half]
                    assert part == sorted(part), name
                held[name] += numbers
    assert {name: sorted(numbers) for name, numbers in held.items()} == {
        b"one": [*range(200)],
        b"two": [*range(200)],
        b"app": [*range(own)],
    }
    assert own


def test_each_micro_batch_by_a_batch_write_under_its_id(
    spark: SparkSession, store_dir: Path, tmp_path: Path
) -> None:
    """What docs/spark.md says of output mode update; the query fails between the write and its commit."""
    begin(store_dir, 100)
    failing = {1}

    def take(frame: DataFrame, batch: int) -> None:
        write(frame, store_dir, topic="to", jobId=f"counts/{batch}")
        if batch in failing:
            failing.remove(batch)
            raise RuntimeError("after the write")

    source = spark.readStream.format("segstore").option("maxOffsetsPerTrigger", 40)
    source = source.options(subscribe="from", startingOffsets="earliest")
    frame = source.load(str(store_dir)).selectExpr("string(value) % 3 as key").groupBy("key").count()
    frame = frame.selectExpr("string(key) as key", "string(count) as value")
    sink = frame.writeStream.outputMode("update").foreachBatch(take).trigger(availableNow=True)
    sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert "after the write" in told(lambda: sink.start().awaitTermination(2 * PATIENCE))
    assert sink.start().awaitTermination(2 * PATIENCE)
    with segstore.open(store_dir, "r") as reader:
        found = [record for p in range(3) for record in records(reader.partition("to", p))]
    assert len(found) == 9  # three keys in three micro-batches
    assert sorted(int(record.value or 0) for record in found)[-3:] == [33, 33, 34]


def test_large_arrow_types(spark: SparkSession, store_dir: Path) -> None:
    """Spark may be told to use them everywhere."""
    begin(store_dir, 10)
    setting = "spark.sql.execution.arrow.useLargeVarTypes"
    was = spark.conf.get(setting)
    spark.conf.set(setting, "true")
    try:
        frame = read(spark, store_dir, subscribe="from", includeHeaders=True)
        headed = frame.selectExpr("key", "value", "array(named_struct('key', 'k', 'value', value)) headers")
        write(headed, store_dir, topic="to")
        found = rows(read(spark, store_dir, subscribe="to", includeHeaders=True))
    finally:
        spark.conf.set(setting, was)
    assert sorted((row.key, row.headers) for row in found) == [
        (b"%d" % i, [("k", b"%d" % i)]) for i in range(10)
    ]
