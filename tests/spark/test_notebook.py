"""The notebook runs in a fresh clone from its first cell to its last, on a few batches and flights. Needs
Java.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from clones import clone, executed, shown

import segstore
from segstore.errors import SegstoreError

pytestmark = [pytest.mark.judge("spark"), pytest.mark.kind("Spark programs")]

SMALL = {
    "SEGSTORE_NOTEBOOK_BATCHES": "8",
    "SEGSTORE_NOTEBOOK_FLIGHTS": "4000",
    "SEGSTORE_NOTEBOOK_MICRO_BATCHES": "6",
}


@pytest.fixture
def java() -> None:
    pytest.importorskip("pyspark", "4.2", reason="PySpark 4.2 or newer is not installed")
    from segstore.spark.java import find_java

    try:
        find_java()
    except SegstoreError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("java")
def test_the_notebook(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    path = clone(tmp_path) / "notebooks" / "spark-checkpoints.ipynb"
    told = "".join(shown(executed(path, {**SMALL, "TMPDIR": str(tmp_path / "temporary")})))
    assert "injected: RENAME" in told
    assert "processes: the driver, Java, Python workers" in told
    assert "hours, equal: True" in told
    assert told.rstrip().endswith("check: []")
    (root,) = (tmp_path / "temporary").glob("segstore-checkpoints-*")
    for store in ("store", "demo"):
        assert list(segstore.check(root / store)) == []
