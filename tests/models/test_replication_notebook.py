"""notebooks/replication.ipynb plays all known anomalies in a fresh clone: the old algorithms break, the
present one holds.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from clones import clone, executed, shown
from replicas.algorithms import TRACES

pytestmark = pytest.mark.kind("models")


def test_the_notebook(tmp_path: Path) -> None:
    notebook = executed(clone(tmp_path) / "notebooks" / "replication.ipynb")
    found = shown(notebook)
    said = [text for text in found if text != "picture"]
    assert len(found) - len(said) == 2 * len(TRACES) == 2 * len(said)
    assert all("every property holds after each step" in text for text in said)
    assert all(":** P" in text for text in said)
    assert {cell.source for cell in notebook.cells} >= {f'show("{name}")' for name in TRACES}
