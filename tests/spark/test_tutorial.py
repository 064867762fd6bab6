"""The tutorial of Spark, and docs/spark.md, work when they are followed from top to bottom."""

from __future__ import annotations

from pathlib import Path

import pages
import pytest
from places import REPOSITORY
from pyspark.sql import SparkSession

import segstore

pytestmark = [pytest.mark.judge("spark"), pytest.mark.kind("Spark programs")]


def test_the_tutorial_works_when_it_is_followed(tmp_path: Path) -> None:
    pages.walk(REPOSITORY / "docs" / "tutorials" / "spark.md", tmp_path)
    assert segstore.check(tmp_path / "flights-log") == []


def test_the_page_works_when_it_is_followed(spark: SparkSession, tmp_path: Path) -> None:
    disks = [tmp_path / f"disk{number}" / "log" for number in (1, 2, 3)]
    for parent in (*(disk.parent for disk in disks), tmp_path / "data", tmp_path / "tmp"):
        parent.mkdir()
    with segstore.open_replicated(disks) as replicated:
        replicated.create_topic("flights", replication_factor=3)
        replicated.partition("flights").append(b"on time", key=b"UA1545")
    with segstore.open(tmp_path / "data" / "log") as store:
        for topic in ("flights", "delays"):
            store.create_topic(topic)
        store.partition("flights").append_batch([b"on time", b"late"], keys=[b"UA1545", b"AA1141"])
    places = {f"/{name}/": f"{tmp_path}/{name}/" for name in ("tmp", "disk1", "disk2", "disk3", "data")}
    setting = pages.Setting(
        {**places, "local[*]": "local[2]"},
        {"SEGSTORE_PATH": str(tmp_path / "data" / "log")},
        names={"segstore": segstore},
    )
    assert pages.walk(REPOSITORY / "docs" / "spark.md", tmp_path, setting) == 6
    with segstore.open(tmp_path / "data" / "log", "r") as store:
        written = [record.value for record in store.partition("delays")]
    assert written == [b"late", b"on time", b"late"]  # one row, and two reprocessed; streams begin at the end
    assert segstore.check(tmp_path / "data" / "log") == []
