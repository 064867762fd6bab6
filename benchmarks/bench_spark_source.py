"""How fast Spark reads a store: a scan beside a source that only hands out ready batches, filters, start-up.

One session, local[2]. The baseline of a scan is the most that PySpark's Data Source API lets through: rows of
the same columns and types, as an Arrow batch of 10,000 that was made once.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from harness import FIRST_MS, SEED, Results, by_turns, random_values, stamps

import segstore

pytest.importorskip("pyspark", "4.2")

PARTITIONS = 2
RECORDS = 2_000_000
CHUNK = 250_000
KEY_BYTES = 8
ROUNDS = 7
SUBSETS = {"offset long, value binary": "sum(length(value))", "offset long": "sum(offset)"}
"""Columns, and what is asked of them."""


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from segstore.spark import session

    made = session(
        "local[2]",
        spark_driver_memory="2g",
        spark_sql_python_filterPushdown_enabled=True,
    )
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: Any) -> str:
    """Topic "t": RECORDS in two partitions; topic "few": a thousandth of it, all that a filter leaves."""
    path = tmp_path_factory.mktemp("spark") / "store"
    with segstore.open(path) as store:
        store.create_topic("t", partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            fill(store.partition("t", partition), RECORDS // PARTITIONS)
        store.create_topic("few", partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            fill(store.partition("few", partition), RECORDS // PARTITIONS // 1000)
    return str(path)


def fill(log: segstore.PartitionLog, n: int) -> None:
    values = random_values(min(n, CHUNK))
    for at in range(0, n, CHUNK):
        some = values[: n - at]
        log.append_batch(some, keys=some[:, :KEY_BYTES].copy(), timestamps=stamps(at + len(some))[at:])


def ready_source() -> type:
    """Defined in a function, so that it travels to the workers by value."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):
        def __init__(self, names: list[str], rows: int) -> None:
            self.names, self.rows = names, rows

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(2)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            import numpy as np
            import pyarrow as pa

            n = 10_000
            data = np.random.default_rng(1).bytes(n * 100)
            columns = {
                "key": pa.array([data[i * 100 : i * 100 + 8] for i in range(n)]),
                "value": pa.array([data[i * 100 : i * 100 + 100] for i in range(n)]),
                "topic": pa.array(["t"] * n),
                "partition": pa.array([partition.value] * n, pa.int32()),
                "offset": pa.array(range(n), pa.int64()),
                "timestamp": pa.array(range(n), pa.timestamp("us", "UTC")),
                "timestampType": pa.array([0] * n, pa.int32()),
            }
            batch = pa.RecordBatch.from_pydict({name: columns[name] for name in self.names})
            yield from [batch] * (self.rows // 2 // n)

    class Ready(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ready"

        def reader(self, schema: Any) -> Reader:
            return Reader(schema.names, int(self.options["rows"]))

    return Ready


def total(frame: Any) -> int:
    """Every value is looked at."""
    ((found, rows),) = frame.selectExpr("sum(length(value))", "count(1)").collect()
    assert found == rows * 100
    return int(rows)


KEPT = "topic string, partition int, offset long, timestamp timestamp, timestampType int"
ALL = f"key binary, value binary, {KEPT}"


def scanned(spark: Any, path: str, columns: str) -> None:
    assert total(spark.read.format("segstore").schema(columns).load(path, subscribe="t")) == RECORDS


def test_scan(spark: Any, filled: str, benchmark: Any, results: Results) -> None:
    spark.dataSource.register(ready_source())

    def baseline() -> None:
        assert total(spark.read.format("ready").schema(ALL).load(rows=RECORDS)) == RECORDS

    ratio, theirs, mine = by_turns(benchmark, lambda: scanned(spark, filled, ALL), baseline, rounds=ROUNDS)
    note = f"{RECORDS / mine / 1e6:.2f} M rows/s against {RECORDS / theirs / 1e6:.2f} of ready batches"
    results.add(benchmark, "spark scan", ratio, 0.8, "x", True, note)


@pytest.mark.parametrize("columns", SUBSETS)
def test_subset(spark: Any, filled: str, benchmark: Any, results: Results, columns: str) -> None:
    """The same query of some columns, over these alone and over all of them."""

    def scan(asked: str) -> None:
        frame = spark.read.format("segstore").schema(asked).load(filled, subscribe="t")
        ((_, rows),) = frame.selectExpr(SUBSETS[columns], "count(1)").collect()
        assert rows == RECORDS

    ratio, theirs, mine = by_turns(benchmark, lambda: scan(columns), lambda: scan(ALL), rounds=ROUNDS)
    note = f"{RECORDS / mine / 1e6:.2f} M rows/s against {RECORDS / theirs / 1e6:.2f} of all columns"
    results.add(benchmark, f"spark scan, .schema({columns!r})", ratio, 1.4, "x", True, note)


def timed(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


MIDDLE = RECORDS // PARTITIONS // 2
FEW = RECORDS // PARTITIONS // 1000
LAST = FIRST_MS + RECORDS // PARTITIONS - FEW
FILTERS = {
    "offset": f"offset >= {MIDDLE} and offset < {MIDDLE + FEW}",
    "timestamp, the last": f"timestamp >= timestamp_millis({LAST})",
    "timestamp, the middle": (
        f"timestamp >= timestamp_millis({FIRST_MS + MIDDLE}) "
        f"and timestamp < timestamp_millis({FIRST_MS + MIDDLE + FEW})"
    ),
}


@pytest.mark.parametrize("column", FILTERS)
def test_filter(column: str, spark: Any, filled: str, benchmark: Any, results: Results) -> None:
    """Beyond Spark's fixed cost: a query of as many tasks of which no row passes, over a topic that is small.

    How early the records of a batch are is not in Kafka's format: behind the first that is late enough, all
    are looked at for a time. The queries come in another order each time.
    """

    def query(topic: str, where: str) -> int:
        options = {"subscribe": topic, "filterPushdown": "true"}
        frame = spark.read.format("segstore").load(filled, **options).where(where)
        return int(frame.selectExpr("sum(length(value))", "count(1)").collect()[0][1])

    def none() -> None:
        early = f"timestamp >= timestamp_millis(0) and timestamp < timestamp_millis({FIRST_MS})"
        assert query("few", early) == 0

    def filtered() -> None:
        assert query("t", FILTERS[column]) == FEW * PARTITIONS

    def full() -> None:
        assert query("t", "offset >= 0") == RECORDS

    queries = [none, filtered, full]
    took: dict[Callable[[], None], list[float]] = {each: [] for each in queries}
    order = random.Random(SEED)
    for _ in range(2 + 2 * ROUNDS):
        order.shuffle(queries)
        for each in queries:
            took[each].append(timed(each))
    benchmark.pedantic(filtered, rounds=3)
    fixed, some, whole = (median(took[each][2:]) for each in (none, filtered, full))
    note = f"a thousandth: {some * 1000:.0f} ms; fixed {fixed * 1000:.0f} ms, full scan {whole * 1000:.0f} ms"
    beyond = (some - fixed) / (whole - fixed)
    results.add(benchmark, f"spark filter, {column}", beyond, 0.05, "x", False, note)


PLAIN = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").getOrCreate()
"""
OURS = """
from segstore.spark import session
spark = session("local[2]"{})
"""
FIRST_ROW = """
import sys
spark.read.format("segstore").load(sys.argv[1], subscribe="few").limit(1).collect()
"""


def started(code: str, path: str, cache: Path) -> None:
    root = str(Path(segstore.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": root, "PYSPARK_PYTHON": sys.executable, "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-c", code + FIRST_ROW, path]
    subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def caches(tmp_path_factory: Any) -> dict[str, Path]:
    """One without an archive, one with: making it takes a minute or two, once for a machine."""
    from segstore.spark import prepare

    found = {"without": tmp_path_factory.mktemp("none"), "with": tmp_path_factory.mktemp("cache")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(found["with"]))
        prepare()
    return found


@pytest.mark.parametrize("archive", ["without", "with"])
@pytest.mark.parametrize("quick", ["", ", quick=True"], ids=["usual", "quick"])
def test_start(
    quick: str, archive: str, filled: str, caches: dict[str, Path], benchmark: Any, results: Results
) -> None:
    """From nothing to the first row, the processes' ends included. Plain PySpark is told the right Python."""
    ratio, theirs, mine = by_turns(
        benchmark,
        lambda: started(OURS.format(quick), filled, caches[archive]),
        lambda: started(PLAIN, filled, caches[archive]),
        rounds=3,
    )
    note = f"{mine:.1f} s against {theirs:.1f} of plain PySpark"
    results.add(benchmark, f"first row{quick}, {archive} an archive", 1 / ratio, 0.6, "x", False, note)
