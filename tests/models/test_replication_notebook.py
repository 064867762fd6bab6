"""notebooks/replication.ipynb plays all known anomalies: the old algorithms break, the present one holds."""

from __future__ import annotations

import pytest
from places import REPOSITORY
from replicas.algorithms import TRACES

NOTEBOOK = REPOSITORY / "notebooks" / "replication.ipynb"


def test_the_notebook() -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, nbformat.NO_CONVERT)
    resources = {"metadata": {"path": str(NOTEBOOK.parent)}}
    nbclient.NotebookClient(notebook, timeout=240, resources=resources).execute()
    shown = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ())]
    said = [data["text/markdown"] for data in shown if "text/markdown" in data]
    assert sum("image/png" in data for data in shown) == 2 * len(TRACES) == 2 * len(said)
    assert all("every property holds after each step" in text for text in said)
    assert all(":** P" in text for text in said)
    assert {cell.source for cell in notebook.cells} >= {f'show("{name}")' for name in TRACES}
