"""Spark reads a directory of a replicated store up to its high watermark; writing is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from replicated_stores import Directories, await_in_sync
from spark import read, told
from stores import tree
from waiting import until

import segstore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.judge("spark")


def test_a_directory_is_read_beside_its_writer_and_not_written(spark: SparkSession, tmp_path: Path) -> None:
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
    before = [tree(path) for path in two.paths]
    rows = spark.createDataFrame([(b"x",)], "value binary")
    for path in two.paths:
        error = told(
            lambda path=path: (
                rows.write.format("segstore").mode("append").option("topic", "t").save(str(path))
            )
        )
        assert "staged appends are for a store without replicas" in error
    assert [tree(path) for path in two.paths] == before
    assert [segstore.check(path) for path in two.paths] == [[], []]


def ends(path: Path) -> list[int]:
    """Where a reader of the directory finds the ends."""
    with segstore.open(path, mode="r") as reader:
        return [reader.partition("t", number).end_offset for number in range(2)]
