"""`df.write` and `df.writeStream` with format("segstore"), run by Spark: rows, types, kills, company."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", "4.2")

import faults
import sinks
from consumers import until
from pyspark import cloudpickle
from spark import read, rows, told
from staging import inbox, unsynced
from stores import START_MS, values

import segstore
from segstore.records import CODECS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.judge("spark")


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
        assert inbox(store_dir) == []
    expected = rows(read(spark, tmp_path / "from", includeHeaders=True))
    assert rows(read(spark, store_dir, includeHeaders=True)) == expected
    with segstore.open(store_dir, "r") as reader:
        for number, codec in enumerate(CODECS):
            found = reader.partition(codec, 0).read(0)
            assert set((found.batches["attributes"] & 7).tolist()) == {number}


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


def test_a_job_that_fails_writes_nothing_and_bad_input_starts_no_task(
    spark: SparkSession, store_dir: Path
) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
    frame = spark.range(0, 40, 1, 2).selectExpr("string(id) value")
    broken = frame.selectExpr("if(value = '17', raise_error('row 17'), value) value")
    assert "row 17" in told(lambda: write(broken, store_dir, topic="t"))
    assert "topic 't' has partitions 0 to 0" in told(
        lambda: write(frame.selectExpr("value", "1 partition"), store_dir, topic="t")
    )
    spark.sparkContext.setJobGroup("bad", "bad")
    try:
        bad = {"option topic: no topic 'u'": {"topic": "u"}, "topicc is unknown": {"topicc": "t"}}
        for said, options in bad.items():
            assert said in told(lambda options=options: write(frame, store_dir, **options))
        assert "column value is bigint" in told(
            lambda: write(spark.range(3).toDF("value"), store_dir, topic="t")
        )
        assert list(spark.sparkContext.statusTracker().getJobIdsForGroup("bad")) == []
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    with segstore.open(store_dir) as store:
        assert store.partition("t").end_offset == 0


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


def stream(
    spark: SparkSession, path: Path, tmp_path: Path, kind: str = "segstore", **options: Any
) -> StreamingQuery:
    """From "from" to "to" until all is read."""
    limit = options.pop("limit", 1000)
    given = {
        "path": str(path),
        "subscribe": "from",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": limit,
    }
    frame = spark.readStream.format("segstore").options(**given).load()
    sink = frame.select("key", "value").writeStream.format(kind).trigger(availableNow=True)
    options = {
        "path": str(path),
        "topic": "to",
        "checkpointLocation": str(tmp_path / "checkpoint"),
        **options,
    }
    return sink.options(**options).start()


def written(path: Path) -> list[int]:
    with segstore.open(path, "r") as reader:
        return sorted(int(value) for p in range(3) for value in values(reader.partition("to", p)))


@pytest.fixture(scope="module")
def killing(spark: SparkSession) -> Iterator[None]:
    """The sink that is killed; Spark's workers don't find the tests' modules."""
    for module in (sinks, faults):
        cloudpickle.register_pickle_by_value(module)
    spark.dataSource.register(sinks.KilledOnce)
    yield
    for module in (sinks, faults):
        cloudpickle.unregister_pickle_by_value(module)


KILLS = [
    ("write", 1),
    ("write", 4),
    ("write", 7),
    ("commit", 1),
    ("commit", 6),
    ("commit", 14),
    ("commit", 22),
]


def test_a_worker_or_the_committer_is_killed(
    spark: SparkSession, killing: None, store_dir: Path, tmp_path: Path
) -> None:
    """The query fails; started again, it goes on with the same micro-batch."""
    begin(store_dir, 0)
    flag, told_of = tmp_path / "flag", []
    for round_, (step, nth) in enumerate(KILLS):
        with segstore.open(store_dir, files=unsynced(faults.HookedFiles())) as store:
            fill(store, range(round_ * 30, round_ * 30 + 30))
        flag.touch()
        said = {"step": step, "nth": nth, "flag": str(flag)}
        query = stream(spark, store_dir, tmp_path, "segstore_killed", **said)
        told_of.append(told(lambda query=query: query.awaitTermination(120)))
        assert not flag.exists(), (step, nth)
        assert len(written(store_dir)) % 30 == 0
        assert stream(spark, store_dir, tmp_path).awaitTermination(120)
        assert written(store_dir) == list(range(round_ * 30 + 30)), (step, nth)
    assert len(told_of) == len(KILLS)


def test_the_process_that_adopts_is_killed(spark: SparkSession, store_dir: Path, tmp_path: Path) -> None:
    """An application has the store open, and dies when it adopts: the query does it itself."""
    begin(store_dir, 60)
    for nth in (4, 11):
        ready, tell_ready = os.pipe()
        pid = os.fork()
        if not pid:
            with suppress(BaseException):
                files = unsynced(faults.KillingFiles(0))
                with segstore.open(store_dir, files=files) as store:
                    fill(store, range(60 * nth, 60 * nth + 60))
                    files.arm(nth)
                    os.write(tell_ready, b"x")
                    signal.pause()
            os._exit(0)
        os.read(ready, 1)
        try:
            assert stream(spark, store_dir, tmp_path).awaitTermination(120)
        finally:
            os.kill(pid, signal.SIGTERM)  # where it lives still
            ended = os.waitpid(pid, 0)
        assert ended == (pid, signal.SIGKILL)
    assert written(store_dir) == sorted([*range(60), *range(240, 300), *range(660, 720)])


DRIVER = """
import sys
from segstore.spark import session
path, checkpoint = sys.argv[1:]
spark = session("local[2]", quick=True, spark_sql_shuffle_partitions=2)
frame = spark.readStream.format("segstore").option("maxOffsetsPerTrigger", 40).option("subscribe", "from")
frame = frame.option("startingOffsets", "earliest").load(path).select("key", "value")
sink = frame.writeStream.format("segstore").option("checkpointLocation", checkpoint).option("topic", "to")
sink.start(path).awaitTermination()
"""


def test_the_driver_is_killed(spark: SparkSession, store_dir: Path, tmp_path: Path) -> None:
    """Its JVM and its Python with SIGKILL, amid micro-batches; another one goes on from the checkpoint."""
    begin(store_dir, 2000)
    words = [sys.executable, "-c", DRIVER, str(store_dir), str(tmp_path / "checkpoint")]
    paths = os.pathsep.join(
        filter(None, (str(Path(segstore.__file__).parents[1]), os.environ.get("PYTHONPATH")))
    )
    driver = subprocess.Popen(
        words, env={**os.environ, "PYTHONPATH": paths}, start_new_session=True, stderr=subprocess.DEVNULL
    )
    try:
        with segstore.open(store_dir, "r") as reader:
            logs = [reader.partition("to", p) for p in range(3)]
            until(lambda: sum(log.end_offset for log in logs) >= 120 or driver.poll() is not None, 120)
            assert driver.poll() is None
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    before = written(store_dir)
    assert 120 <= len(before) < 2000
    assert stream(spark, store_dir, tmp_path).awaitTermination(120)
    assert written(store_dir) == list(range(2000))


def test_two_queries_and_an_application_append_at_once(
    spark: SparkSession, store_dir: Path, tmp_path: Path
) -> None:
    begin(store_dir, 200)
    with segstore.open(store_dir) as store:
        queries = [stream(spark, store_dir, tmp_path / name, limit=50) for name in ("one", "two")]
        own = 0
        while any(query.isActive for query in queries):
            store.partition("to", own % 3).append(b"-%d" % (own + 1))
            own += 1
        assert all(query.awaitTermination(120) for query in queries)
        assert own
        assert written(store_dir) == sorted([*range(200), *range(200), *range(-own, 0)])
