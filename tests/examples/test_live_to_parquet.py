"""examples/live_to_parquet.py: Spark streams what an application writes meanwhile, each record once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from loading import loaded
from places import REPOSITORY
from waiting import PATIENCE

import segstore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.judge("spark"), pytest.mark.kind("Spark")]


@pytest.fixture
def example() -> ModuleType:
    return loaded(REPOSITORY / "examples" / "live_to_parquet.py")


def test_each_reading_is_in_parquet_once(
    spark: SparkSession, example: ModuleType, store_dir: Path, tmp_path: Path
) -> None:
    out = str(tmp_path / "readings.out")
    for round_ in (1, 2):  # the second query goes on from the checkpoint of the first
        example.write(str(store_dir), 200)
        query = example.stream(spark, str(store_dir), out, once=True)
        assert query.awaitTermination(PATIENCE)
        table = spark.read.parquet(out).toArrow()
        places = Counter(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
        with segstore.open(store_dir, "r") as store:
            ends = {number: store.partition("readings", number).end_offset for number in range(2)}
        assert sum(ends.values()) == 200 * round_
        assert places == Counter((number, offset) for number, end in ends.items() for offset in range(end))
        assert set(table["sensor"].to_pylist()) == {f"sensor-{number}" for number in range(10)}
        assert None not in table["celsius"].to_pylist()
