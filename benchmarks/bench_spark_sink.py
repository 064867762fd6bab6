"""How fast Spark writes into a store: beside an Arrow writer that only counts its rows.

One session, local[2]; rows come from `spark.range`: an 8-byte key, a value of 100 bytes. Both sides do all of
a batch write; ours makes durable what it writes, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness import Results, by_turns

import segstore

pytest.importorskip("pyspark", "4.2")

ROWS = int(os.environ.get("SPARK_ROWS", "2000000"))
ROUNDS = 5
PARTITIONS = 2


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from segstore.spark import session

    made = session("local[2]", spark_driver_memory="2g")
    made.sparkContext.setLogLevel("ERROR")
    made.dataSource.register(counting_sink())
    yield made
    made.stop()


def counting_sink() -> type:
    """Defined in a function, so that it travels to the workers by value."""
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    class Writer(DataSourceArrowWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            sum(batch.num_rows for batch in iterator)
            return WriterCommitMessage()

        def commit(self, messages: Any) -> None:
            pass

        def abort(self, messages: Any) -> None:
            pass

    class Counting(DataSource):
        @classmethod
        def name(cls) -> str:
            return "counting"

        def writer(self, schema: Any, overwrite: bool) -> Writer:
            return Writer()

    return Counting


VALUE = "concat(lpad(string(id), 8, '0'), repeat('v', 92)) value"
CASES = {"by key": ("lpad(string(id), 8, '0') key", VALUE), "no keys": (VALUE,)}


@pytest.mark.parametrize("holder", ["nobody has it open", "open in the driver"])
@pytest.mark.parametrize("case", CASES)
def test_sink(benchmark: Any, results: Results, spark: Any, tmp_path: Any, case: str, holder: str) -> None:
    rows = spark.range(0, ROWS, 1, 2).selectExpr(*CASES[case])
    path = str(tmp_path / "store")
    store = segstore.open(path)
    store.create_topic("t", PARTITIONS)
    if holder == "nobody has it open":
        store.close()
    ratio, theirs, ours = by_turns(
        benchmark, write(rows, "segstore", path), write(rows, "counting", path), rounds=ROUNDS
    )
    store.close()
    with segstore.open(path, "r") as reader:
        written = sum(reader.partition("t", p).end_offset for p in range(PARTITIONS))
    assert written == ROWS * (ROUNDS + 1)
    note = f"{ROWS / ours / 1e6:.2f} of {ROWS / theirs / 1e6:.2f} Mrow/s that only count"
    results.add(benchmark, f"sink, {case}, {holder}", ratio, 0.7, "x", True, note)


def write(rows: Any, kind: str, path: str) -> Callable[[], None]:
    return lambda: rows.write.format(kind).mode("append").option("topic", "t").save(path)
