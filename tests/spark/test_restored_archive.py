"""A query beside a source that was restored from an archive and went on, without a JVM: leader epochs in the
offsets of its checkpoint tell.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from consumers import append, fill
from made_archive import make_archive

import segstore
from segstore import TopicPartition
from segstore.errors import DataLossError

pytest.importorskip("pyspark", "4.2")

from pyspark.sql import types

from segstore.spark.source import StreamReader

COLUMNS = types.StructType().add("offset", types.LongType())
ARCHIVED, READ = 8, 12
"""The archive has the offsets below 8, and the query has read the original up to 12."""


def reader(path: Path, fail: str) -> StreamReader:
    held = {"path": str(path), "subscribe": "t", "startingOffsets": "earliest", "failOnDataLoss": fail}
    return StreamReader(held, COLUMNS)


def batch(path: Path, at: Any, fail: str = "true") -> tuple[Any, list[str]]:
    """Return the end of the next micro-batch from `at` on, None: the first one, and its parts."""
    stream = reader(path, fail)
    try:
        at = stream.initialOffset() if at is None else at
        end = json.loads(json.dumps(stream.latestOffset(at, stream.getDefaultReadLimit())))
        parts = [] if end == at else stream.partitions(at, end)
        return end, [f"{part}: {part.start}-{part.end}" for part in parts]
    finally:
        stream.stop()


@pytest.fixture
def query(tmp_path: Path) -> tuple[str, Any]:
    """The URI of an archive, and the offsets of a query that has read more than it has."""
    original = tmp_path / "original"
    with segstore.open(original) as store:
        fill(store, records=ARCHIVED)
    archive = make_archive(original, tmp_path / "archive")
    with segstore.open(original) as store:
        append(store, READ - ARCHIVED)
    return archive.uri, batch(original, None)[0]


@pytest.mark.parametrize("end", [ARCHIVED, 5])
@pytest.mark.parametrize("more", [READ, 30])
def test_a_source_that_was_restored_is_told(
    query: tuple[str, Any], store_dir: Path, end: int, more: int
) -> None:
    uri, at = query
    segstore.restore(uri, store_dir, at={TopicPartition("t", 0): end})
    with segstore.open(store_dir) as store:
        append(store, more)
    with pytest.raises(DataLossError, match=rf"another way from offset {end} on"):
        batch(store_dir, at)
    assert batch(store_dir, at, "false")[1] == [f"t-0: {end}-{end + more}"]


def test_a_source_that_lies_behind_is_told(query: tuple[str, Any], store_dir: Path) -> None:
    uri, at = query
    segstore.restore(uri, store_dir)
    with pytest.raises(DataLossError):
        batch(store_dir, at)
