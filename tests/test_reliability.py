"""docs/reliability.md says of the tests what the tests say: its table, and how runs are held to it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from faulty import report
from waiting import PATIENCE

TESTS = Path(__file__).parent
TEXT = (TESTS.parent / report.DOCUMENT).read_text(encoding="utf-8")


def recorded() -> set[str]:
    """Every kind that some test counts."""
    found = set()
    for path in [*TESTS.rglob("test_*.py"), TESTS / "stores.py", TESTS / "faulty" / "driver.py"]:
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
    assert [str(file) for row in rows for file in row.files if not (TESTS.parent / file).exists()] == []


LEAST = {
    "one that is always the same": ("simulation seeds", 240, 240),
    "one that is drawn": ("power cuts", 12_345, 11_000),
    "a small one that is drawn": ("second cuts", 7, 6),
}


@pytest.mark.parametrize("name", LEAST)
def test_what_is_promised_of_a_count(name: str) -> None:
    kind, counted, least = LEAST[name]
    assert report.least(kind, counted) == least


def document(least: int, files: str = "test_a, test_b") -> str:
    row = f"| {report.KINDS['power cuts']} | {least} | {files} |"
    return f"Text.\n\n{report.BEGIN}\n| what | at least | by tests/ |\n|---|--:|---|\n{row}\n{report.END}\n"


COUNTS = "from faulty.counts import record\n\n\ndef test_{}():\n    record('power cuts', {})\n"
A, B = COUNTS.format("a", 3) + "\n\ndef test_more():\n    record('power cuts')\n", COUNTS.format("b", 6)
PYTEST = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
SKIPS = "import pytest\n\ndef test_b():\n    pytest.skip('no disk')\n"
FAILS = "def test_b():\n    assert 0\n"
RUNS = {
    "as many as the table says": (10, B, [], 0, False),
    "less": (11, B, [], 1, True),
    "less, in two processes": (11, B, ["-p", "xdist", "-n2"], 1, True),
    "as many, in two processes": (10, B, ["-p", "xdist", "-n2"], 0, False),
    "some tests by -k": (11, B, ["-k", "test_a or test_b"], 0, False),
    "one test by name": (11, B, ["tests/test_a.py::test_a", "tests/test_b.py"], 0, False),
    "one file of two": (11, B, ["tests/test_a.py"], 0, False),
    "a test was skipped": (11, SKIPS, [], 0, False),
    "a test failed": (11, FAILS, [], 1, False),
    "the tests of a file count no more": (5, "def test_b():\n    pass\n", [], 1, True),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_held_to_the_table(tmp_path: Path, name: str) -> None:
    least, other, arguments, status, told = RUNS[name]
    made = {"docs/reliability.md": document(least), "tests/test_a.py": A, "tests/test_b.py": other}
    made |= {"pytest.ini": "[pytest]\ntestpaths = tests\n"}
    for file, text in made.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    command = [sys.executable, "-c", PYTEST, "-q", "-p", "counted", "-p", "no:cacheprovider", *arguments]
    passed = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "SEGSTORE_", "COVERAGE_"))}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**passed, "PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert ("says more than was tried" in done.stdout) == told
