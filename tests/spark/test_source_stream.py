"""`spark.readStream.format("segstore")`, as Spark runs it: progress, restarts, limits, loss."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from consumers import append, fill
from spark import told
from stores import Clock
from waiting import PATIENCE, until

import segstore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.judge("spark"), pytest.mark.kind("Spark")]


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    """Topic "t": 12 and 4 records."""
    with segstore.open(store_dir, clock=Clock()) as made:
        made.create_topic("t", partitions=2, config={"segment.bytes": 200, "file.delete.delay.ms": 0})
        append(made, 12, partition=0)
        append(made, 4, partition=1)
        yield made


class Seen(dict[int, list[str]]):
    """The values that each micro-batch brought, by its number."""

    def __call__(self, frame: Any, batch: int) -> None:
        self[batch] = sorted(row.value.decode() for row in frame.select("value").collect())

    @property
    def values(self) -> list[str]:  # type: ignore[override]
        return sorted(value for batch in super().values() for value in batch)


def start(
    spark: SparkSession, store: segstore.Store, tmp_path: Path, seen: Seen, **options: Any
) -> StreamingQuery:
    now = options.pop("available_now", True)
    options = {"path": store.path, "subscribe": "t", "startingOffsets": "earliest", **options}
    frame = spark.readStream.format("segstore").options(**options).load()
    writer = frame.writeStream.foreachBatch(seen).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer = writer.trigger(availableNow=True) if now else writer.trigger(processingTime="0 seconds")
    return writer.start()


def finish(query: StreamingQuery) -> list[dict[str, Any]]:
    """The sources' progress of each micro-batch that read something."""
    assert query.awaitTermination(2 * PATIENCE)
    return [json.loads(p.json)["sources"][0] for p in query.recentProgress if p.numInputRows]


def expected(store: segstore.Store) -> list[str]:
    found = [f"{p}-{i}" for p in range(2) for i in range(store.partition("t", p).end_offset)]
    return sorted(found)


def test_available_now_in_batches_then_a_restart(
    spark: SparkSession, store: segstore.Store, tmp_path: Path
) -> None:
    seen = Seen()
    progress = finish(start(spark, store, tmp_path, seen, maxOffsetsPerTrigger=8))
    assert seen.values == expected(store)
    assert [len(values) for values in dict.values(seen)] == [8, 8]
    assert [each["numInputRows"] for each in progress] == [8, 8]
    assert progress[0]["endOffset"] == {
        "t": {"0": 6, "1": 2},
        "leader epochs": {"t": {"0": 0, "1": 0}},
    }
    assert progress[0]["latestOffset"] == {"t": {"0": 12, "1": 4}}
    append(store, 5, partition=1)
    store.partition("t", 0).delete_records(8)  # what was read may go
    finish(start(spark, store, tmp_path, seen, maxOffsetsPerTrigger=8))
    assert seen.values == expected(store)
    assert set(seen) == {0, 1, 2}


def test_a_query_follows_the_log(spark: SparkSession, store: segstore.Store, tmp_path: Path) -> None:
    seen = Seen()
    fill(store, "u", records=3)
    query = start(
        spark, store, tmp_path, seen, available_now=False, startingOffsets="latest", subscribe="t,u"
    )
    try:
        until(lambda: query.recentProgress or query.exception())
        for partition in (0, 1):
            append(store, 3, partition=partition)
        until(lambda: len(seen.values) >= 6 or query.exception())
        store.add_partitions("u", 2)
        append(store, 2, "u", partition=1)
        until(lambda: len(seen.values) >= 8 or query.exception())
    finally:
        query.stop()
    assert seen.values == sorted(["0-12", "0-13", "0-14", "1-4", "1-5", "1-6", "1-0", "1-1"])
    # Nothing new is no batch, but for the first and where a partition came.
    assert len([batch for batch in seen if not seen[batch]]) <= 2


@pytest.mark.parametrize("fail", ["true", "false"])
def test_retention_between_two_runs(
    fail: str, spark: SparkSession, store: segstore.Store, tmp_path: Path
) -> None:
    seen = Seen()
    finish(start(spark, store, tmp_path, seen))
    append(store, 8)
    store.partition("t", 0).delete_records(16)
    query = start(spark, store, tmp_path, seen, failOnDataLoss=fail)
    if fail == "true":
        message = told(lambda: query.awaitTermination(2 * PATIENCE))
        assert "t-0: offsets 12 to 20 were to be read, and 16 to 20 are there" in message
        assert "failOnDataLoss=false" in message
    else:
        finish(query)
        assert seen[1] == ["0-16", "0-17", "0-18", "0-19"]


def test_a_source_that_was_restored_from_an_older_copy(
    spark: SparkSession, store: segstore.Store, tmp_path: Path
) -> None:
    """It went on beyond the offsets of the checkpoint: its records there were passed over without a word."""
    path = Path(store.path)
    store.close()
    shutil.copytree(path, tmp_path / "older")
    with segstore.open(path, clock=Clock()) as original:
        append(original, 4)
        finish(start(spark, original, tmp_path, Seen()))
    shutil.rmtree(path)
    os.rename(tmp_path / "older", path)
    seen = Seen()
    with segstore.open(path, clock=Clock()) as restored:
        append(restored, 6)
        query = start(spark, restored, tmp_path, seen)
        message = told(lambda: query.awaitTermination(2 * PATIENCE))
        assert "t-0: records before offset 16" in message
        assert "the log goes another way from offset 12 on" in message
        assert not seen.values
        finish(start(spark, restored, tmp_path, seen, failOnDataLoss="false"))
        assert seen.values == [f"0-{n}" for n in range(12, 18)]
        append(restored, 1)
        finish(start(spark, restored, tmp_path, seen))
        assert seen.values == [f"0-{n}" for n in range(12, 19)]


BAD: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "missing path": ({"path": "/no/such/store"}, ("option path='/no/such/store'", "give the directory")),
    "no such topic": ({"subscribe": "x"}, ("option subscribe: no topic 'x'",)),
    "bad JSON": ({"startingOffsets": "{t:1}"}, ("option startingOffsets='{t:1}'", '{"topic": {"0": 23')),
    "an unknown option": ({"maxOffsetPerTrigger": "1"}, ("unknown: did you mean maxOffsetsPerTrigger?",)),
    "offsets that are gone": (
        {"startingOffsets": '{"t":{"0":99,"1":-2}}'},
        ("option startingOffsets: offset 99 of t-0", "failOnDataLoss=false"),
    ),
    "an end": ({"endingOffsets": "latest"}, ("option endingOffsets: a stream has no end",)),
    "offsets of another topic": ({"startingOffsets": '{"x":{"0":1}}'}, ("option startingOffsets must name",)),
    "a type": ({"schema": "value string"}, ("column value is binary, not string",)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, spark: SparkSession, store: segstore.Store, tmp_path: Path) -> None:
    options, said = BAD[name]
    options = {"path": store.path, "subscribe": "t", **options}

    def run() -> None:
        reader = spark.readStream.format("segstore")
        reader = reader.schema(options.pop("schema")) if "schema" in options else reader
        writer = reader.options(**options).load().writeStream.format("noop")
        writer.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination(2 * PATIENCE)

    message = told(run)
    assert [part for part in said if part not in message] == [], message
