"""notebooks/why-kafka-is-fast.ipynb runs from first to last on a small run's results, and shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli import ok
from places import REPOSITORY

from segstore.bench import load
from segstore.bench.show import STUDIES, about, all_in, said

pytestmark = [pytest.mark.slow, pytest.mark.kind("programs")]

NOTEBOOK = REPOSITORY / "notebooks" / "why-kafka-is-fast.ipynb"
PICTURES_OF_ZERO_COPY = 2


@pytest.fixture(scope="module")
def results(disk_dir: Path) -> Path:
    """Where a small run of everything has left its results."""
    directory, out = disk_dir / "logs", disk_dir / "results"
    directory.mkdir()
    ok("bench", "study", "all", "--quick", "--runs", 1, "--directory", directory, "--out", out)
    ok("bench", "zero-copy", "--quick", "--runs", 1, "--directory", directory, "--out", out)
    assert list(directory.iterdir()) == []
    return out


def test_the_notebook(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("SEGSTORE_RESULTS", str(results))
    notebook = nbformat.read(NOTEBOOK, nbformat.NO_CONVERT)
    resources = {"metadata": {"path": str(NOTEBOOK.parent)}}
    nbclient.NotebookClient(notebook, timeout=240, resources=resources).execute()
    shown = [output["data"] for cell in notebook.cells for output in cell.get("outputs", ())]
    text = [data.get("text/markdown") for data in shown]
    for name, one in all_in(results).items():
        assert said(one) in text
        assert f"**{one.question}** {about(name)}" in text
    assert sum("image/png" in data for data in shown) >= len(STUDIES) + PICTURES_OF_ZERO_COPY


def test_all_results_of_a_run_are_there_and_in_order(results: Path) -> None:
    assert list(all_in(results)) == ["zero-copy", *STUDIES]
    for name, one in all_in(results).items():
        assert load(results / f"{name}.json") == one


def test_the_notebook_has_no_logic() -> None:
    """One function that shows, and calls of it."""
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in cells]
    assert sum("def " in source for source in sources) == 1
    for name in ("zero-copy", *STUDIES):
        assert f'show("{name}")' in sources
