"""Micro-batches that Spark runs again: by the plan in its checkpoint, or by an older copy of that."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark import told
from staging import left_in_inbox
from stores import values
from waiting import PATIENCE

import segstore
from segstore.spark import checkpoints

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.judge("spark"), pytest.mark.kind("Spark")]


def fill(path: Path, first: int, count: int = 5) -> None:
    with segstore.open(path) as store:
        store.ensure_topic("in")
        store.ensure_topic("out")
        store.partition("in").append_batch([b"%d" % i for i in range(first, first + count)])


def new_rows(spark: SparkSession, path: Path) -> DataFrame:
    options = {"subscribe": "in", "startingOffsets": "earliest"}
    return spark.readStream.format("segstore").options(**options).load(str(path)).select("value")


def written(path: Path) -> list[int]:
    with segstore.open(path, "r") as store:
        return sorted(int(value or b"") for value in values(store.partition("out", 0)))


@contextmanager
def served(spark: SparkSession, place: Path) -> Iterator[str]:
    """The checkpoint in a store of its own."""
    with segstore.open(place) as store, checkpoints(store) as ck:
        ck.configure(spark)
        yield ck.url("q")


@contextmanager
def local(spark: SparkSession, place: Path) -> Iterator[str]:
    yield str(place)


PLACES: dict[str, Callable[[SparkSession, Path], Any]] = {"a log": served, "a directory": local}


@pytest.mark.parametrize("place", PLACES)
def test_an_older_copy_of_the_checkpoint_is_refused(
    place: str, spark: SparkSession, store_dir: Path, tmp_path: Path
) -> None:
    """Its plan has the number of one that is in the log: 5 of 20 rows were dropped without an error."""
    live, older, newest = (tmp_path / name for name in ("live", "older", "newest"))

    def run() -> None:
        with PLACES[place](spark, live) as location:
            sink = new_rows(spark, store_dir).writeStream.format("segstore").option("topic", "out")
            sink = sink.option("checkpointLocation", location).trigger(availableNow=True)
            assert sink.start(str(store_dir)).awaitTermination(2 * PATIENCE)

    for first, copy in ((0, older), (5, newest)):
        fill(store_dir, first)
        run()
        shutil.copytree(live, copy)
    shutil.rmtree(live)
    shutil.copytree(older, live)
    fill(store_dir, 10)
    for _ in range(2):
        message = told(run)
        epochs = '"leader epochs": {"in": {"0": 0}}}'
        said = (
            f'with 5 records of offsets up to {{"in": {{"0": 10}}, {epochs}; '
            f'10 records of offsets up to {{"in": {{"0": 15}}, {epochs}'
        )
        assert "IdempotencyConflictError" in message
        assert said in message.replace('\\"', '"')
    assert written(store_dir) == [*range(10)]
    assert left_in_inbox(store_dir) == []
    shutil.rmtree(live)
    shutil.copytree(newest, live)
    run()
    assert written(store_dir) == [*range(15)]


def test_a_plan_that_runs_again_with_other_rows(spark: SparkSession, store_dir: Path, tmp_path: Path) -> None:
    """Killed between the sink's commit and Spark's, a query with random rows, in a random order."""
    place = tmp_path / "checkpoint"
    fill(store_dir, 0, 200)

    def run(frame: DataFrame) -> None:
        sink = frame.writeStream.format("segstore").option("topic", "out").trigger(availableNow=True)
        sink = sink.option("checkpointLocation", str(place))
        assert sink.start(str(store_dir)).awaitTermination(2 * PATIENCE)

    run(new_rows(spark, store_dir).repartition(2).where("rand() < 0.5"))
    first = written(store_dir)
    for change in ("rand() < 0.5", "string(value) like '1%'"):
        (place / "commits" / "0").unlink()
        run(new_rows(spark, store_dir).repartition(3).where(change))
        assert written(store_dir) == first
    fill(store_dir, 1000, 10)
    run(new_rows(spark, store_dir))
    assert written(store_dir) == [*first, *range(1000, 1010)]


def test_a_batch_write_of_an_older_copy_is_refused(
    spark: SparkSession, store_dir: Path, tmp_path: Path
) -> None:
    """Of foreachBatch the sink knows no plan: numbers of rows are compared."""
    live = tmp_path / "live"

    def take(frame: DataFrame, batch: int) -> None:
        writer = frame.write.format("segstore").mode("append").option("topic", "out")
        writer.option("jobId", f"copy/{batch}").save(str(store_dir))

    def run() -> None:
        sink = new_rows(spark, store_dir).writeStream.foreachBatch(take).trigger(availableNow=True)
        assert sink.option("checkpointLocation", str(live)).start().awaitTermination(2 * PATIENCE)

    for first in (0, 5):
        fill(store_dir, first)
        run()
    (live / "commits" / "1").unlink()
    run()  # as after a kill
    assert written(store_dir) == [*range(10)]
    for kind in ("offsets", "commits"):
        (live / kind / "1").unlink()
    fill(store_dir, 10)
    assert "'spark-job/copy/1' is in the log since" in told(run)
    assert written(store_dir) == [*range(10)]
