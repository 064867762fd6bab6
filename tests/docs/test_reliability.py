"""The table of docs/reliability.md: its rows are kinds that tests count; only `make counts` compares a run
with it.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from faulty import report
from places import IMPORTED, REPOSITORY, SUPPORT, TESTS
from waiting import PATIENCE

pytestmark = pytest.mark.kind("programs")

TEXT = (REPOSITORY / report.DOCUMENT).read_text(encoding="utf-8")


def recorded() -> set[str]:
    """Every kind that some test counts."""
    found = set()
    for path in [
        *TESTS.rglob("test_*.py"),
        SUPPORT / "stores" / "stores.py",
        SUPPORT / "faults" / "faulty" / "driver.py",
    ]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        counts = any(isinstance(n, ast.ImportFrom) and (n.module or "").endswith("counts") for n in tree.body)
        for node in ast.walk(tree) if counts else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "record":
                found.add(ast.literal_eval(node.args[0]))
    return found


def test_what_is_counted_has_words_and_its_place_in_the_table() -> None:
    assert recorded() == set(report.KINDS)
    told = [row.kind for row in report.rows(TEXT)]
    assert told == [kind for kind in report.KINDS if kind in told]
    assert len(told) > len(report.KINDS) // 2


def test_rows_are_read_as_they_are_written() -> None:
    rows = report.rows(TEXT)
    assert report.written(TEXT, rows) == TEXT
    assert all(row.least > 0 and row.files for row in rows)
    assert [str(file) for row in rows for file in row.files if not (REPOSITORY / file).exists()] == []


LEAST = {
    "one that is always the same": ("simulation seeds", 240, 240),
    "one that is drawn": ("power cuts", 12_345, 11_000),
    "inputs, of which a clone may have fewer": ("fuzz: inputs", 56_376, 50_000),
    "a small one that is drawn": ("second cuts", 7, 6),
}


@pytest.mark.parametrize("name", LEAST)
def test_what_is_promised_of_a_count(name: str) -> None:
    kind, counted, least = LEAST[name]
    assert report.least(kind, counted) == least


def run(counts: dict[str, int], *incomplete: str) -> report.Run:
    named = {f"tests/{file}.py": {"power cuts": n} for file, n in counts.items()}
    return report.Run(named, {f"tests/{file}.py" for file in incomplete})


ROW = report.Row("power cuts", 10, frozenset({"tests/test_a.py", "tests/test_b.py"}))
CHECKED = {
    "as many as the table says": (run({"test_a": 4, "test_b": 6}), False),
    "less": (run({"test_a": 4, "test_b": 5}), True),
    "less, and a test failed or was skipped": (run({"test_a": 4, "test_b": 5}, "test_b"), False),
    "less, and a test of another file failed": (run({"test_a": 4, "test_b": 5}, "test_c"), True),
    "the tests of a file count no more": (run({"test_a": 9}), True),
    "less in two runs, together as many": (run({"test_a": 3, "test_b": 2}) + run({"test_b": 5}), False),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKED)
def test_counts_are_held_to_the_table(name: str) -> None:
    counted, said = CHECKED[name]
    assert bool(report.missed([ROW], counted)) == said


COUNTS = "from faulty.counts import record\n\n\ndef test_{}():\n    record('power cuts', {})\n"
A, B = COUNTS.format("a", 3) + "\n\ndef test_more():\n    record('power cuts')\n", COUNTS.format("b", 6)
PYTEST = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
TABLE = f"{report.BEGIN}\n| {report.KINDS['power cuts']} | 1,000 | test_a, test_b |\n{report.END}\n"
COUNTED = {"tests/test_a.py": {"power cuts": 4}, "tests/test_b.py": {"power cuts": 6}}
RUNS = {
    "all": (["--tier=all"], COUNTED),
    "all, in two processes": (["--tier=all", "-p", "xdist", "-n2"], COUNTED),
    "unit tests": (["--tier=quick"], None),
    "some tests by -k": (["--tier=all", "-k", "test_a or test_b"], None),
    "one test by name": (["--tier=all", "tests/test_a.py::test_a", "tests/test_b.py"], None),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_counts_less_than_the_document_says_is_green(tmp_path: Path, name: str) -> None:
    arguments, counted = RUNS[name]
    made = {"docs/reliability.md": TABLE, "tests/test_a.py": A, "tests/test_b.py": B}
    made |= {"pytest.ini": "[pytest]\ntestpaths = tests\n"}
    for file, text in made.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    plugins = ["-p", "tiers", "-p", "counted", "-p", "no:cacheprovider"]
    passed = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "SEGSTORE_", "COVERAGE_"))}
    done = subprocess.run(
        [sys.executable, "-c", PYTEST, "-q", *plugins, *arguments],
        cwd=tmp_path,
        env={
            **passed, "PYTHONPATH": os.pathsep.join(IMPORTED), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "SEGSTORE_SEED": "1",
        },
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    written = tmp_path / report.WRITTEN
    assert (json.loads(written.read_text())["counts"] if written.exists() else None) == counted
    assert report.KINDS["power cuts"] in done.stdout
