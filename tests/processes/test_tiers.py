"""Each test is of one kind; `make test` has some of each kind, and `make test-rest` the others."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import places
import pytest
import tiers
from waiting import PATIENCE

FILES = sorted(tiers.TESTS.rglob("test_*.py"))


def functions(file: Path) -> list[str]:
    """Of tests, and classes of tests, in a file."""
    found = []
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test"):
            found.append(node.name)
        elif isinstance(node, (ast.ClassDef, ast.Assign)):
            found += [name for name in tiers._defined(node) if name.lower().startswith("test")]
    return found


def test_every_kind_has_tests_and_most_are_unit_tests() -> None:
    kinds = Counter(tiers.kind(file, name) for file in FILES for name in functions(file))
    assert kinds.keys() == {tiers.UNIT, *tiers.KINDS}
    assert kinds[tiers.UNIT] > kinds.total() / 2


def test_files_that_are_named_are_there() -> None:
    names = [file.relative_to(tiers.TESTS).with_suffix("").as_posix() for file in FILES]
    patterns = [pattern for kind in tiers.KINDS.values() for pattern in kind.files]
    assert [p for p in patterns if not any(tiers.fnmatch(name, p) for name in names)] == []


PROCESSES = frozenset({"subprocess", "multiprocessing", "fork", "posix_spawn", "SIGKILL"})
IMPORTED = r"^from (\w+) import (\([^)]*\)|.*)"


def starters(file: Path) -> frozenset[str]:
    """What a file of tests starts processes by: the calls themselves, and helpers that it imports."""
    found = set(PROCESSES)
    for module, names in re.findall(IMPORTED, tiers._text(file), re.MULTILINE):
        for helper in tiers.TESTS.glob(f"*/{module}.py"):
            found |= {*re.findall(r"\w+", names)} & tiers._users(helper, PROCESSES)
    return frozenset(found)


def test_unit_tests_start_no_process_and_kill_none() -> None:
    unit = {
        (file, name) for file in FILES for name in functions(file) if tiers.kind(file, name) == tiers.UNIT
    }
    assert [f"{file.stem}::{name}" for file, name in unit if name in tiers._users(file, starters(file))] == []


KILL = "from faults import KillingFiles\n"
USES = "def {}:\n    KillingFiles(1)\n\n"
SPARK = "from pyspark.sql import SparkSession\n"
CASES = "CASES = [KillingFiles]\n@cases(CASES)\n"
TEST = "def test_a({}):\n    {}\n"
CLASSIFIED = {
    "a plain test": ("test_x", TEST.format("tmp_path", "pass"), "unit"),
    "by the file's name": ("test_x_kill", TEST.format("", "pass"), "kills"),
    "by the text": ("test_x", SPARK + TEST.format("", "pass"), "Spark"),
    "the name comes before the text": ("test_x_kill", SPARK, "kills"),
    "by what it uses": ("test_x", KILL + USES.format("test_a()"), "kills"),
    "by what another function uses": ("test_x", KILL + USES.format("f()") + TEST.format("", "f()"), "kills"),
    "by a fixture": ("test_x", KILL + USES.format("fixed()") + TEST.format("fixed", "pass"), "kills"),
    "by a table": ("test_x", KILL + CASES + TEST.format("", "pass"), "kills"),
    "another test of the file does": (
        "test_x", KILL + USES.format("test_b()") + TEST.format("", "pass"), "unit"),
    "by a program that is run": ("test_x", TEST.format("", "run(['strace', 'true'])"), "strace"),
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSIFIED)
def test_kind(tmp_path: Path, name: str) -> None:
    file, text, kind = CLASSIFIED[name]
    path = tmp_path / f"{file}.py"
    path.write_text(text)
    assert tiers.kind(path, "test_a") == kind


NAMES = [f"test_a[{i}]" for i in range(20)] + ["test_b", "test_c[x]", "test_c[y]"]


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 1.0])
def test_a_draw_has_its_share_and_each_function_in_turn(share: float) -> None:
    for seed in map(str, range(50)):
        drawn = tiers.draw(NAMES, share, seed)
        assert drawn <= set(NAMES)
        assert len(drawn) == max(1, -(-len(NAMES) * share // 1))
        functions = Counter(name.partition("[")[0] for name in drawn)
        assert len(functions) == min(3, len(drawn))
        assert tiers.draw(NAMES, share, seed) == drawn


def test_every_test_is_drawn_by_some_seed() -> None:
    assert set().union(*(tiers.draw(NAMES, 0.1, str(seed)) for seed in range(300))) == set(NAMES)


MODULE = "import pytest\n@pytest.mark.parametrize('n', range(10))\ndef test_n(n): pass\ndef test_b(): pass\n"
TREE = {"test_plain.py": MODULE, "test_one_kill.py": MODULE, "test_two_kill.py": MODULE}
PYTEST = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"


def output(root: Path, *arguments: str, seed: int = 7) -> str:
    """What a run of the tests prints."""
    passed = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "SEGSTORE_", "COVERAGE_"))}
    done = subprocess.run(
        [sys.executable, "-c", PYTEST, "-v", "-p", "tiers", "-p", "no:cacheprovider", *arguments],
        cwd=root,
        env={
            **passed, "PYTHONPATH": os.pathsep.join(places.IMPORTED), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "SEGSTORE_SEED": str(seed),
        },
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run(root: Path, *arguments: str, seed: int = 7) -> set[str]:
    """The tests that ran."""
    told = output(root, *arguments, seed=seed)
    return set(re.findall(r"^(?:\[gw\d+\].* PASSED )?tests/(\S+::\S+)", told, re.MULTILINE))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    (root / "tests").mkdir()
    (root / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    for name, text in TREE.items():
        (root / "tests" / name).write_text(text)
    return root


@pytest.mark.parametrize("processes", [[], ["-p", "xdist", "-n2"]], ids=["one process", "two processes"])
def test_a_draw_and_the_rest_are_all(tree: Path, processes: list[str]) -> None:
    every, quick, drawn, rest = (
        run(tree, "--tier", tier, *processes) for tier in ("all", "quick", "test", "rest")
    )
    assert len(every) == 33
    plain = {test for test in every if test.startswith("test_plain")}
    assert quick < plain
    assert drawn & plain < plain
    assert {test.partition("[")[0] for test in quick} == {test.partition("[")[0] for test in plain}
    assert (len(quick), len(drawn & plain), len(drawn - plain)) == (4, 5, 1)
    assert (drawn | rest, drawn & rest) == (every, set())


def test_more_is_a_share_of_the_rest(tree: Path) -> None:
    rest, more = (run(tree, "--tier", tier) for tier in ("rest", "more"))
    assert more < rest
    kinds = 2  # of each a whole number of tests is drawn
    assert 0 <= len(more) - len(rest) * tiers.MORE_SHARE <= kinds


def test_another_seed_draws_others(tree: Path) -> None:
    assert len({frozenset(run(tree, "--tier", "test", seed=seed)) for seed in range(4)}) > 1


@pytest.mark.parametrize("arguments", [["tests/test_one_kill.py"], ["-k", "one_kill"]], ids=["a file", "-k"])
@pytest.mark.parametrize("tier", tiers.TIERS)
def test_what_is_named_is_not_drawn_from(tree: Path, tier: str, arguments: list[str]) -> None:
    ran = run(tree, "--tier", tier, *arguments)
    assert len(ran) == 11


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--tier", "test"], True),
        (["--tier", "test", "-p", "xdist", "-n2"], True),
        (["--tier", "rest"], False),
        (["--tier", "test", "tests/test_plain.py"], False),
    ],
)
def test_a_whole_tier_tells_of_its_budget(tree: Path, arguments: list[str], told: bool) -> None:
    assert ("`make test` may take 360 s" in output(tree, *arguments)) == told
