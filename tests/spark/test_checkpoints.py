"""Spark's own checkpoints in the checkpoint store: queries are killed within a batch and go on, compared with
a plain directory to which the same happens. Needs Java.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from stores import killed

import segstore
from segstore.spark import checkpoints
from segstore.spark.checkpointing import Checkpoints

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.judge("spark"), pytest.mark.kind("Spark")]

STATE = "spark.sql.streaming.stateStore"
PROVIDER = "org.apache.spark.sql.execution.streaming.state."
PROVIDERS = {
    "hdfs": {f"{STATE}.providerClass": f"{PROVIDER}HDFSBackedStateStoreProvider"},
    "rocksdb": {
        f"{STATE}.providerClass": f"{PROVIDER}RocksDBStateStoreProvider",
        f"{STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    },
}
MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
BY_CONTEXT = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
KILLED_IN, LAST = 1, 2
Seen = dict[int, list[Any]]


@contextmanager
def settings(spark: SparkSession, values: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def numbers(spark: SparkSession) -> DataFrame:
    """Batch N has the numbers from 20 N on."""
    options = {"rowsPerBatch": 20, "numPartitions": 1}
    return spark.readStream.format("rate-micro-batch").options(**options).load().selectExpr("value as n")


def counted(spark: SparkSession) -> DataFrame:
    return numbers(spark).selectExpr("n % 7 as k").groupBy("k").count()


def distinct(spark: SparkSession) -> DataFrame:
    return numbers(spark).selectExpr("n % 50 as k").dropDuplicates(["k"])


def joined(spark: SparkSession) -> DataFrame:
    """Each number with that of 20 rows, a batch, before."""
    left, right = numbers(spark), numbers(spark).selectExpr("n + 20 as n", "n as earlier")
    return left.join(right, "n")


QUERIES: dict[str, tuple[Callable[[SparkSession], DataFrame], str]] = {
    "aggregation": (counted, "update"),
    "dropDuplicates": (distinct, "append"),
    "join": (joined, "append"),
}


def run(
    spark: SparkSession,
    query: str,
    location: str,
    last: int = LAST,
    within: Callable[[int], object] = lambda batch: None,
) -> Seen:
    """The rows that each batch gave, up to `last`; `within` is called in each. Raises what it fails by."""
    make, mode = QUERIES[query]
    seen: Seen = {}

    def take(frame: DataFrame, batch: int) -> None:
        seen[batch] = sorted(tuple(row) for row in frame.collect())
        within(batch)

    writer = make(spark).writeStream.foreachBatch(take).outputMode(mode)
    started = writer.option("checkpointLocation", location).start()
    try:
        while started.isActive and max(seen, default=-1) <= last:
            time.sleep(0.02)
        failed = started.exception()
        if failed is not None:
            raise failed
    finally:
        started.stop()
    return {batch: rows for batch, rows in seen.items() if batch <= last}


def killed_and_gone_on(
    spark: SparkSession, query: str, live: Path, copy: Path, url: Callable[[Path], Any]
) -> tuple[Seen, Seen]:
    """What was seen before a kill within batch KILLED_IN, and after it, of what the kill had left."""

    def kill(batch: int) -> None:
        if batch == KILLED_IN and not copy.exists():
            killed(live, copy)

    with url(live) as location:
        before = run(spark, query, location, KILLED_IN, kill)
    with url(copy) as location:
        return before, run(spark, query, location)


@contextmanager
def plain(path: Path) -> Iterator[str]:
    yield (path / "q").as_uri()


def served(spark: SparkSession, scheme: str = "segstore") -> Callable[[Path], Any]:
    @contextmanager
    def serve(path: Path) -> Iterator[str]:
        with segstore.open(path) as store, checkpoints(store) as ck:
            ck.configure(spark)
            yield ck.url("q", scheme)

    return serve


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_goes_on_after_a_kill(
    spark: SparkSession, store_dir: Path, tmp_path: Path, query: str, provider: str
) -> None:
    by_context = (query, provider) == ("aggregation", "hdfs")  # Spark's default manager, once
    more = {MANAGER: BY_CONTEXT} if by_context else {}
    scheme = "webhdfs" if by_context else "segstore"
    (tmp_path / "plain").mkdir()
    with settings(spark, PROVIDERS[provider] | more):
        ours = killed_and_gone_on(spark, query, store_dir, tmp_path / "copy", served(spark, scheme))
        theirs = killed_and_gone_on(spark, query, tmp_path / "plain", tmp_path / "plain-copy", plain)
    assert ours == theirs
    before, after = ours
    assert list(before) == list(range(KILLED_IN + 1))
    assert list(after) == list(range(KILLED_IN, LAST + 1))
    assert before[KILLED_IN] == after[KILLED_IN]
    assert list(segstore.check(tmp_path / "copy")) == []


# --- the same failures ------------------------------------------------------------------------------------


def write(root: Path | Checkpoints, path: str, data: bytes) -> None:
    """What another run of the query would have written."""
    if isinstance(root, Checkpoints):
        root.tree.write(f"/q/{path}", data, overwrite=True)
    else:
        target = root / "q" / path
        target.write_bytes(data)
        (target.parent / f".{target.name}.crc").unlink(missing_ok=True)


def remove(root: Path | Checkpoints, path: str) -> None:
    if isinstance(root, Checkpoints):
        assert root.tree.delete(f"/q/{path}")
    else:
        (root / "q" / path).unlink()


def condition(run: Callable[[], object]) -> str:
    """The error's class by Spark's own names; without one, its first words."""
    with pytest.raises(Exception) as raised:
        run()
    text = str(raised.value)
    return next((word for word in text.split() if word.startswith("[")), text[:60])


def another_committed(spark: SparkSession, root: Path | Checkpoints, location: str) -> str:
    within = {1: lambda: write(root, "commits/1", b"v1\n{}")}
    return condition(
        lambda: run(spark, "aggregation", location, within=lambda batch: within.get(batch, int)())
    )


def state_is_gone(spark: SparkSession, root: Path | Checkpoints, location: str) -> str:
    # An engine of its own for each: a provider that is still loaded would not read the file.
    spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()
    run(spark, "aggregation", location, 1)
    spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()
    remove(root, "state/0/0/1.delta")
    return condition(lambda: run(spark, "aggregation", location))


def garbage(spark: SparkSession, root: Path | Checkpoints, location: str) -> str:
    run(spark, "aggregation", location, 0)
    write(root, "metadata", b"garbage")
    return condition(lambda: run(spark, "aggregation", location))


def rename(root: Path | Checkpoints, path: str, target: str) -> None:
    if isinstance(root, Checkpoints):
        root.tree.rename(f"/q/{path}", f"/q/{target}")
    else:
        (root / "q" / path).rename(root / "q" / target)


def not_writable(directory: str) -> Callable[[SparkSession, Path | Checkpoints, str], list[Any]]:
    """Within batch 1 a file comes in place of a directory, so that nothing can be written there; then it is
    put right again.
    """

    def fail(spark: SparkSession, root: Path | Checkpoints, location: str) -> list[Any]:
        def spoil(batch: int) -> None:
            if batch == 1:
                rename(root, directory, "kept")
                write(root, directory, b"in the way")

        with pytest.raises(Exception) as raised:
            run(spark, "aggregation", location, within=spoil)
        outcome = "in the way" if directory in str(raised.value) else str(raised.value)
        remove(root, directory)
        rename(root, "kept", directory)
        return [outcome, run(spark, "aggregation", location)]

    return fail


FAILURES = {
    "another run committed": another_committed,
    "state is gone": state_is_gone,
    "garbage": garbage,
    "commits can't be written": not_writable("commits"),
    "plans can't be written": not_writable("offsets"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_the_same_failure_on_both(spark: SparkSession, store_dir: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "plain").mkdir()
    with settings(spark, PROVIDERS["hdfs"]):
        theirs = FAILURES[name](spark, tmp_path / "plain", (tmp_path / "plain" / "q").as_uri())
        with segstore.open(store_dir) as store, checkpoints(store) as ck:
            ck.configure(spark)
            ours = FAILURES[name](spark, ck, ck.url("q"))
    assert ours == theirs


def test_a_commit_that_fails_is_run_again(spark: SparkSession, store_dir: Path) -> None:
    """A fault on the way: the query ends, and goes on with the same batch, whose state is replaced."""
    with segstore.open(store_dir) as store, checkpoints(store) as ck:
        ck.configure(spark)
        with settings(spark, PROVIDERS["rocksdb"]):
            fault = ck.fail("RENAME", "/q/commits/1")
            with pytest.raises(Exception, match="injected: RENAME /q/commits/1"):
                run(spark, "aggregation", ck.url("q"))
            assert fault.hits == 1
            assert ck.tree.get("/q/commits/1") is None
            seen = run(spark, "aggregation", ck.url("q"), 2)
    assert list(seen) == [1, 2]
    assert sum(count for _, count in seen[2]) == 60


# --- lineage ----------------------------------------------------------------------------------------------


def test_rdds_and_frames(spark: SparkSession, store_dir: Path) -> None:
    with segstore.open(store_dir) as store, checkpoints(store) as ck:
        ck.configure(spark)
        frame = spark.range(1000).repartition(2).checkpoint()
        assert frame.selectExpr("sum(id)").collect()[0][0] == 499_500
        rdd = spark.sparkContext.parallelize(range(100), 2)
        rdd.checkpoint()
        assert rdd.sum() == 4950
        assert rdd.isCheckpointed()
        assert rdd.sum() == 4950
        parts = [path for path, _ in ck.tree.walk("/rdd") if "/part-" in path]
        assert len(parts) == 4
        frame.write.parquet(ck.url("table"))
        assert spark.read.parquet(ck.url("table")).count() == 1000
