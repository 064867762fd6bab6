"""Each test is of one kind; `make test` has some of each kind, and `make test-rest` the others."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import places
import pytest
import tiers
from waiting import PATIENCE

pytestmark = pytest.mark.kind("programs")

FILES = sorted(tiers.TESTS.rglob("test_*.py"))


def functions(file: Path) -> list[str]:
    """Of tests, and classes of tests, in a file."""
    found = []
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test"):
            found.append(node.name)
        elif isinstance(node, (ast.ClassDef, ast.Assign)):
            found += [name for name in defined(node) if name.lower().startswith("test")]
    return found


def test_every_kind_has_tests_and_most_are_unit_tests() -> None:
    kinds = Counter(tiers.kind(file, name) for file in FILES for name in functions(file))
    assert kinds.keys() == {tiers.UNIT, *tiers.KINDS}
    assert kinds[tiers.UNIT] > kinds.total() / 2


@cache
def users(file: Path, names: frozenset[str]) -> set[str]:
    """Return the definitions of a module that use one of `names`, directly or by another definition of the
    module.
    """
    if not any(name in file.read_text(encoding="utf-8") for name in names):
        return set()
    by_definition = uses(file)
    found: set[str] = set()
    while more := {name for name, used in by_definition.items() if used & (names | found)} - found:
        found |= more
    return found


@cache
def uses(file: Path) -> dict[str, set[str]]:
    """Return the names and strings that each definition of a module uses."""
    found: dict[str, set[str]] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        used = set()
        for n in ast.walk(node):
            if isinstance(n, ast.Name):
                used.add(n.id)
            elif isinstance(n, ast.Attribute):
                used.add(n.attr)
            elif isinstance(n, ast.arg):  # fixtures
                used.add(n.arg)
            elif isinstance(n, ast.Constant) and isinstance(n.value, str):
                used.add(n.value)
        for name in defined(node):
            found.setdefault(name, set()).update(used)
    return found


def defined(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [n.id for target in targets if target for n in ast.walk(target) if isinstance(n, ast.Name)]


PROCESSES = frozenset({"subprocess", "multiprocessing", "fork", "posix_spawn", "SIGKILL"})
IMPORTED = r"^from (\w+) import (\([^)]*\)|.*)"


def starters(file: Path) -> frozenset[str]:
    """What a file of tests starts processes by: the calls themselves, and helpers that it imports."""
    found = set(PROCESSES)
    for module, names in re.findall(IMPORTED, file.read_text(encoding="utf-8"), re.MULTILINE):
        for helper in tiers.TESTS.glob(f"**/{module}.py"):
            found |= {*re.findall(r"\w+", names)} & users(helper, PROCESSES)
    return frozenset(found)


def test_unit_tests_start_no_process_and_kill_none() -> None:
    unit = {
        (file, name) for file in FILES for name in functions(file) if tiers.kind(file, name) == tiers.UNIT
    }
    assert [f"{file.stem}::{name}" for file, name in unit if name in users(file, starters(file))] == []


MARK = 'pytest.mark.kind("kills")'
TEST = "def test_a(): pass\n"
MARKED = {
    "a plain test": (TEST, "unit"),
    "a marked function": (f"@{MARK}\n{TEST}", "kills"),
    "beside another marker": (f"@pytest.mark.slow\n@{MARK}\n{TEST}", "kills"),
    "another function of the file": (f"@{MARK}\ndef test_b(): pass\n{TEST}", "unit"),
    "a marked file": (f"pytestmark = {MARK}\n{TEST}", "kills"),
    "a file with several markers": (f"pytestmark = [pytest.mark.slow, {MARK}]\n{TEST}", "kills"),
    "a function of another kind than its file": (
        f'pytestmark = {MARK}\n@pytest.mark.kind("programs")\n{TEST}', "programs"),
    "a marked class": (f"@{MARK}\nclass test_a: pass\n", "kills"),
    "a word in the text": ("import subprocess\n" + TEST, "unit"),
}  # fmt: skip


@pytest.mark.parametrize("name", MARKED)
def test_kind(tmp_path: Path, name: str) -> None:
    text, kind = MARKED[name]
    path = tmp_path / "test_x.py"
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
MARKED_MODULE = MODULE.replace("\n", f"\npytestmark = {MARK}\n", 1)
TREE = {"test_plain.py": MODULE, "test_one_kill.py": MARKED_MODULE, "test_two_kill.py": MARKED_MODULE}
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
    (root / "pytest.ini").write_text("[pytest]\ntestpaths = tests\nmarkers = kind(name): a kind of tests\n")
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
