"""How fast Spark reads an archive in place, beside the store whose files it has.

One session, local[2]. The archive lies in a directory beside the store, or below the URI in the variable
ARCHIVE of the environment, such as `s3://bucket/bench?endpoint_override=127.0.0.1:9000&scheme=http`: then the
objects cross a socket, and the store's files do not.
"""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench_spark_source import ALL, fill, total
from harness import Results, by_turns
from made_archive import make_archive

import segstore

pytest.importorskip("pyspark", "4.2")

PARTITIONS = 2
RECORDS = 2_000_000
SEGMENT_BYTES = 64 << 20
ROUNDS = 7
TOPICS = {"plain": "uncompressed", "zstd": "zstd"}
"""Topics, and how their records are compressed."""


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from segstore.spark import session

    made = session("local[2]", spark_driver_memory="2g")
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def places(tmp_path_factory: Any) -> tuple[str, str]:
    """The store, and its archive."""
    path = tmp_path_factory.mktemp("spark")
    with segstore.open(path / "store") as store:
        for topic, codec in TOPICS.items():
            config = {"segment.bytes": SEGMENT_BYTES, "compression.type": codec}
            store.create_topic(topic, partitions=PARTITIONS, config=config)
            for partition in range(PARTITIONS):
                fill(store.partition(topic, partition), RECORDS // PARTITIONS)
    archive = given(path)
    make_archive(path / "store", archive)
    return str(path / "store"), archive


def given(path: Path) -> str:
    """The URI of an archive that is not there yet."""
    place, mark, query = os.environ.get("ARCHIVE", "").partition("?")
    return f"{place.rstrip('/')}/{uuid.uuid4()}{mark}{query}" if place else str(path / "archive")


def scanned(spark: Any, path: str, topic: str) -> None:
    assert total(spark.read.format("segstore").schema(ALL).load(path, subscribe=topic)) == RECORDS


@pytest.mark.parametrize("topic", TOPICS)
def test_scan(spark: Any, places: tuple[str, str], benchmark: Any, results: Results, topic: str) -> None:
    store, archive = places
    ratio, theirs, mine = by_turns(
        benchmark,
        lambda: scanned(spark, archive, topic),
        lambda: scanned(spark, store, topic),
        rounds=ROUNDS,
    )
    note = f"{RECORDS / mine / 1e6:.2f} M rows/s against {RECORDS / theirs / 1e6:.2f} of the store"
    results.add(benchmark, f"spark scan of an archive, {topic}", ratio, 0.8, "x", True, note)


@pytest.mark.parametrize("topic", TOPICS)
def test_task(places: tuple[str, str], benchmark: Any, results: Results, topic: str) -> None:
    """Without Spark: one task after the other, in this process, and no row goes to a JVM."""
    from pyspark.sql import types

    from segstore.spark.columns import arrow_schema
    from segstore.spark.options import parse_options
    from segstore.spark.source import BatchReader

    columns = arrow_schema(types.StructType.fromDDL(ALL))

    def read(path: str) -> None:
        reader = BatchReader(parse_options({"path": path, "subscribe": topic}), columns)
        parts = pickle.loads(pickle.dumps(reader.partitions()))
        assert sum(rows.num_rows for part in parts for rows in reader.read(part)) == RECORDS

    store, archive = places
    ratio, theirs, mine = by_turns(benchmark, lambda: read(archive), lambda: read(store), rounds=ROUNDS)
    note = f"{RECORDS / mine / 1e6:.1f} M rows/s against {RECORDS / theirs / 1e6:.1f} of the store"
    results.add(benchmark, f"tasks over an archive, {topic}", ratio, 0.3, "x", True, note)
