"""Chooses the tests of a run. Writes nothing.

    --tier quick   every unit test but those of whole programs, with some of its cases, drawn by SEGSTORE_SEED
    --tier test    those, more of their cases, and a draw of each other kind
    --tier rest    what `--tier test` leaves out with the same seed
    --tier all     everything; so it is without --tier
    --tier more    a seventh of what `--tier test` leaves out, drawn by SEGSTORE_DRAW (or SEGSTORE_SEED)

A test without a marker is a unit test. Every other one has `pytest.mark.kind("...")`, for a whole file in
`pytestmark`, for a function as a decorator: `--tier quick` reads markers without an import of the file. Of
each kind `make test` draws a share, at least one test if the share is above 0: first one case of each test
function, in random order, then a second one. A drawn test is the same as in a run of all tests. Tests that
are selected by file, name, -k or -m run without a draw.
"""

from __future__ import annotations

import ast
import math
import os
import random
import re
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

Group = TypeVar("Group", bound=Hashable)
TESTS = Path(__file__).parents[1]
TIERS = ("quick", "test", "rest", "all", "more")
MORE_SHARE = 0.15

BEGAN = pytest.StashKey[float]()
BUDGETS = {"quick": 90, "test": 360}
"""Seconds that a tier may take on two quiet cores: who adds a kind of tests takes its time out of the
others."""


UNIT, STORMS = "unit", "storms on the wire"
"""Storms wait for time-outs, or have many rounds: they are for `make test-all` and `make wire-storm`."""
QUICK_SHARE, UNIT_SHARE = 0.33, 0.4
"""Of the cases of unit tests, in `--tier quick` and in `--tier test`: more than there are functions of tests,
so that each function has one case or more.
"""
PROGRAMS = (
    *("cli/*", "crash/*", "docs/*", "hostile/*", "kafka/*", "packaging/*", "processes/*", "spark/*"),
    "server/test_*_clients",
)
"""Files whose unit tests go through a whole command, a client of others or a second open: each takes as long
as a hundred of the others, so `--tier quick` goes without.
"""
KINDS = {
    "Spark programs": 0.0,
    "long kills": 0.0,
    STORMS: 0.0,
    "storms of a shared store": 0.05,
    "members of a shared store": 0.05,
    "rounds of a share group": 0.03,
    "rounds of an archive": 0.0,
    "rounds of a standby": 0.0,
    "images": 0.0,
    "the last version": 0.0,
    "measurements": 0.0,
    "Spark": 0.03,
    "simulation": 0.03,
    "golden logs": 0.08,
    "a log and its oracle": 0.15,
    "simulation of replicas": 0.03,
    "faults": 0.02,
    "power cuts below C": 0.04,
    "model of shared logs": 1.0,
    "model of share partitions": 0.5,
    "games of tables": 0.08,
    "models": 0.02,
    "model checks": 0.1,
    "mutations": 0.1,
    "model of a log's locks": 1.0,
    "long model checks": 0.0,
    "replicated stores": 0.04,
    "replicas of a real broker": 0.0,
    "clients' programs": 1.0,
    "Java's clients": 0.0,
    "clients of other languages": 0.0,
    "fuzz": 0.1,
    "damage": 0.02,
    "interrupts": 0.04,
    "other codecs": 0.1,
    "clients on the wire": 0.15,
    "examples": 0.15,
    "mirrors": 0.15,
    "limits": 0.15,
    "Kafka's broker": 0.0,
    "Kafka's tools": 0.04,
    "faults of an archive": 0.15,
    "S3 server": 0.1,
    "strace": 0.15,
    "kills": 0.03,
    "programs": 0.03,
    "costly unit tests": 0.06,
}
"""The kinds of marked tests, with the share of each that `make test` draws."""


def _name(file: Path) -> str:
    return file.relative_to(TESTS).with_suffix("").as_posix() if file.is_relative_to(TESTS) else file.stem


@cache
def _marked(file: Path) -> dict[str, str]:
    """Return the marked kind of each marked definition of a module; that of the whole module under ""."""
    marks: list[tuple[str, ast.expr]] = []
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            marks += [(node.name, each) for each in node.decorator_list]
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            marks.append(("", node.value))
    return {name: of for name, mark in marks if (of := _kind_in(mark))}


def _kind_in(mark: ast.expr) -> str | None:
    """Return the argument of `pytest.mark.kind` in an expression, None without one."""
    calls = (each for each in ast.walk(mark) if isinstance(each, ast.Call))
    kinds = (each.args[0] for each in calls if ast.unparse(each.func) == "pytest.mark.kind")
    return next((str(ast.literal_eval(each)) for each in kinds), None)


@cache
def kind(file: Path, function: str) -> str:
    """Return the kind of a test function, or of the class that it is in: one of KINDS, or UNIT."""
    marked = _marked(file)
    return marked.get(function, marked.get("", UNIT))


def kind_of(item: pytest.Item) -> str:
    return kind(item.path, re.split(r"::|\[", item.nodeid.partition("::")[2])[0])


def draw(names: Sequence[str], share: float, seed: str) -> set[str]:
    """Return a random share of tests, at least one where it is above 0; the tests of one function are named
    `function[case]`.
    """
    rng = random.Random(seed)
    functions: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        functions[name.partition("[")[0]].append(name)
    turns = list(functions.values())
    rng.shuffle(turns)
    for cases in turns:
        rng.shuffle(cases)
    rounds = (cases[i] for i in range(len(names)) for cases in turns if i < len(cases))
    return {name for name, _ in zip(rounds, range(math.ceil(share * len(names))), strict=False)}


def drawn(items: Iterable[pytest.Item], seed: str) -> set[pytest.Item]:
    """Return the tests that `--tier test` runs."""
    found = set()
    for of, tests in _grouped(items, kind_of).items():
        found.update(_drawn(tests, UNIT_SHARE if of == UNIT else KINDS[of], f"{seed} {of}"))
    return found


def _grouped(
    items: Iterable[pytest.Item], key: Callable[[pytest.Item], Group]
) -> dict[Group, list[pytest.Item]]:
    groups = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


def _is_quick(file: Path) -> bool:
    """Return whether `--tier quick` has the unit tests of a file."""
    return "" not in _marked(file) and not any(fnmatch(_name(file), pattern) for pattern in PROGRAMS)


def _drawn(tests: Sequence[pytest.Item], share: float, seed: str) -> list[pytest.Item]:
    """Return the tests that are drawn, in their order."""
    names = [item.nodeid for item in tests]
    chosen = draw(names, share, seed)
    return [item for item, name in zip(tests, names, strict=True) if name in chosen]


def chosen(items: list[pytest.Item], tier: str, seed: str) -> list[pytest.Item]:
    """Return the tests of a tier, in their order."""
    if tier == "all":
        return items
    if tier == "quick":
        plain = [item for item in items if kind_of(item) == UNIT and _is_quick(item.path)]
        return _drawn(plain, QUICK_SHARE, f"{seed} {UNIT}")
    some = drawn(items, seed)
    if tier == "more":
        turn = os.environ.get("SEGSTORE_DRAW", seed)
        left = _grouped((i for i in items if i not in some and kind_of(i) != STORMS), kind_of)
        more = {item for of, tests in left.items() for item in _drawn(tests, MORE_SHARE, f"{turn} {of}")}
        return [item for item in items if item in more]
    return [item for item in items if (item in some) == (tier == "test")]


# --- pytest --------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=TIERS, default="all", help="which tests: tests/plugins/tiers.py")


def pytest_configure(config: pytest.Config) -> None:
    """Note whether tests were named. Workers of xdist get the command line of the run, so they find the
    same.
    """
    option = config.option
    files = config.args_source is pytest.Config.ArgsSource.ARGS
    option.named = files or bool(option.keyword or option.markexpr)
    config.stash[BEGAN] = time.monotonic()


def pytest_report_header(config: pytest.Config) -> str:
    named = ", all that is named" if config.option.named else ""
    return f"tier of tests: {config.option.tier}{named}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the files of other tiers, which are not even imported."""
    if config.option.named or config.option.tier != "quick" or not collection_path.match("test_*.py"):
        return None
    return None if _is_quick(collection_path) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.named:
        return
    kept = chosen(items, config.option.tier, os.environ["SEGSTORE_SEED"])
    left = set(items) - set(kept)
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = kept


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how much of its budget a whole tier has taken; the load of the machine bears on that."""
    tier = config.option.tier
    if tier in BUDGETS and not config.option.named:
        took = time.monotonic() - config.stash[BEGAN]
        terminalreporter.section("budget")
        terminalreporter.write_line(
            f"{took:.0f} s; `make {tier}` may take {BUDGETS[tier]} s on two quiet cores"
        )
