"""The figures of a first day: each work measures what the table names, and the table has both columns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from places import REPOSITORY, environment
from waiting import PATIENCE

from benchmarks import first_day
from segstore.bench import load

pytestmark = pytest.mark.kind("programs")


@pytest.mark.parametrize("name", [name for name in first_day.WORKS if name != "segstore"])
def test_a_work_measures_what_the_table_names(name: str, tmp_path: Path) -> None:
    found = first_day.WORKS[name](tmp_path / "store", 0.001)
    assert set(found) >= {figure for work, figure in first_day.BEFORE if work == name}
    assert all(value >= 0 for value in found.values())
    if name == "a plain loop":
        assert found == {"of 100,000 records": 100_000}
    if name == "in the log after close":
        assert found == {"of 10,000 records": 10_000}


def test_the_table_has_what_was_and_what_is(tmp_path: Path) -> None:
    chosen = ["--only", "append one by one", "--only", "open to read beside the writer"]
    command = [sys.executable, "-m", "benchmarks.first_day", "--quick", "--out", str(tmp_path), *chosen]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert "| append one by one | records/s | 14,000–18,000 | " in done.stdout
    assert (tmp_path / "first-day.md").read_text("utf-8").strip() in done.stdout
    assert len(load(tmp_path / "first-day.json").cells) == 2


def test_a_work_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="nothing was measured"):
        first_day.measure("no such work", 1.0, str(tmp_path))
