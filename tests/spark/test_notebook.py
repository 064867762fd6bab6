"""The notebook runs from its first cell to its last, on a few batches and flights. Needs Java."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from places import REPOSITORY

import segstore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.judge("spark")

NOTEBOOK = REPOSITORY / "notebooks" / "spark-checkpoints.ipynb"
SETTINGS = [
    "spark.sql.streaming.minBatchesToRetain",
    "spark.sql.streaming.stateStore.providerClass",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
]


def test_the_notebook(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SEGSTORE_NOTEBOOK_BATCHES", "8")
    monkeypatch.setenv("SEGSTORE_NOTEBOOK_FLIGHTS", "4000")
    monkeypatch.setenv("SEGSTORE_NOTEBOOK_MICRO_BATCHES", "6")
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: _made(tmp_path / "notebook"))
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    before = {name: spark.conf.get(name, None) for name in SETTINGS}
    names: dict[str, object] = {}
    try:
        for number, cell in enumerate(cells):
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)
    told = capsys.readouterr().out
    assert "injected: RENAME" in told
    assert "processes: the driver, Java, Python workers" in told
    assert "hours, equal: True" in told
    assert told.rstrip().endswith("check: []")
    for store in ("store", "demo"):
        assert list(segstore.check(tmp_path / "notebook" / store)) == []


def _made(path: Path) -> str:
    path.mkdir()
    return str(path)
