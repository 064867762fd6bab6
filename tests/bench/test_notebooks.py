"""Notebooks run in a fresh clone, whose files are those in git and the built extension. Those of the stored
results show what they were committed with: the same figures as README.md and docs/benchmarks.md.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clones import clone, executed, shown
from places import REPOSITORY

from segstore.bench import load, show
from segstore.bench.terminal import machine_text

pytestmark = pytest.mark.kind("programs")

NOTEBOOKS = sorted(path.stem for path in (REPOSITORY / "notebooks").glob("*.ipynb"))
REPEATED = ("peers", "tables", "why-kafka-is-fast")
ELSEWHERE = {
    "replication": "models/test_replication_notebook.py",
    "spark-checkpoints": "spark/test_notebook.py",
}
RESULTS = REPOSITORY / "benchmarks" / "results"


@pytest.mark.parametrize("name", REPEATED)
def test_a_notebook_shows_in_a_fresh_clone_what_it_was_committed_with(name: str, tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    path = clone(tmp_path) / "notebooks" / f"{name}.ipynb"
    committed = nbformat.read(path, nbformat.NO_CONVERT)
    assert shown(executed(path)) == shown(committed), "run `python -m benchmarks.notebooks`"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_committed_without_an_error(name: str) -> None:
    cells = json.loads((REPOSITORY / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert outputs
    assert [output for output in outputs if output["output_type"] == "error"] == []


def test_every_notebook_runs_in_a_clone() -> None:
    for name, test in ELSEWHERE.items():
        text = (REPOSITORY / "tests" / test).read_text(encoding="utf-8")
        assert f'clone(tmp_path) / "notebooks" / "{name}.ipynb"' in text
    assert {*REPEATED, *ELSEWHERE} == {*NOTEBOOKS}


def test_results_that_are_missing_are_said() -> None:
    assert "`segstore bench study failover --out" in show.not_measured("failover")
    assert "`segstore bench zero-copy --out" in show.not_measured("zero-copy")


def test_every_machine_is_said() -> None:
    one, other = load(RESULTS / "batching.json"), load(RESULTS / "peers.json")
    assert show.measured_on({"a": one, "b": one}) == f"Measured on {machine_text(one)}."
    both = show.measured_on({"a": one, "b": other, "c": one})
    assert both.splitlines() == [
        f"- a, c: measured on {machine_text(one)}",
        f"- b: measured on {machine_text(other)}",
    ]
