"""Which tests a run has. Writes nothing.

    --tier quick   unit tests
    --tier test    those, and a draw by SEGSTORE_SEED of each other kind
    --tier rest    what `--tier test` leaves out with the same seed
    --tier all     everything; so it is without --tier

A kind is told by what the text of a test file holds, so that a new file needs no entry. From each file of a
kind a share of its tests is drawn, at least one: first one of each test function, in drawn order, then a
second one. Tests that draw many things by themselves ask `effort.some` how many. A file, -k, -m or a test
that is named is not drawn from.
"""

from __future__ import annotations

import math
import os
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import effort
import pytest

TESTS = Path(__file__).parent
TIERS = ("quick", "test", "rest", "all")


class Kind(NamedTuple):
    """Tests of which `make test` draws `share` of each file's; `effort`: of what each draws by itself."""

    share: float
    marks: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    effort: float = 1.0


UNIT = "unit"
KINDS = {
    "Spark": Kind(0.3, ("SparkSession", 'judge("spark")')),
    "Kafka's broker": Kind(0.5, ('judge("Kafka\'s broker")',)),
    "Kafka's tools": Kind(0.3, ('judge("kafka.tools.DumpLogSegments")', 'judge("Kafka\'s dump tool")')),
    "strace": Kind(0.5, ('judge("strace")',)),
    "simulation": Kind(0.25, files=("simulation/test_simulation", "simulation/test_mutations")),
    "faults": Kind(0.2, ("from faulty.driver",), effort=0.25),
    "models": Kind(0.2, files=("test_cleaner_model", "test_cleaner_producers_model", "test_groups_model")),
    "kills": Kind(0.25, ("SIGKILL", "KillingFiles", "killed_at_each_call")),
    "fuzz": Kind(1.0, files=("test_fuzz",), effort=0.1),
    "benchmarks": Kind(0.3, files=("test_bench_peers", "test_bench_studies")),
}


@cache
def kind(file: Path) -> str:
    """Of a test file: one of KINDS, or UNIT."""
    name = file.relative_to(TESTS).with_suffix("").as_posix() if file.is_relative_to(TESTS) else file.name
    text = file.read_text(encoding="utf-8")
    named = (k for k, each in KINDS.items() if name in each.files)
    told = (k for k, each in KINDS.items() if any(mark in text for mark in each.marks))
    return next(named, None) or next(told, UNIT)


def draw(names: Sequence[str], share: float, seed: str) -> set[str]:
    """A share of the tests of a file, at least one; of `names`, those of a function are `function[case]`."""
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
    """Which `--tier test` runs."""
    files: defaultdict[Path, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.path].append(item)
    found = set()
    for path, tests in files.items():
        of = kind(path)
        if of == UNIT:
            found.update(tests)
            continue
        names = [item.nodeid.partition("::")[2] for item in tests]
        chosen = draw(names, KINDS[of].share, f"{seed} {path.relative_to(TESTS).as_posix()}")
        found.update(item for item, name in zip(tests, names, strict=True) if name in chosen)
    return found


def chosen(items: list[pytest.Item], tier: str, seed: str) -> list[pytest.Item]:
    """The tests of a tier, in their order."""
    if tier == "all":
        return items
    if tier == "quick":
        return [item for item in items if kind(item.path) == UNIT]
    some = drawn(items, seed)
    if tier == "test":
        return [item for item in items if item in some]
    again = [k for k, each in KINDS.items() if each.effort < 1]
    return [item for item in items if item not in some or kind(item.path) in again]


# --- pytest --------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=TIERS, default="all", help="which tests: tests/tiers.py")


def pytest_configure(config: pytest.Config) -> None:
    """Workers of xdist get the command line of the run, and so find the same."""
    option = config.option
    files = config.args_source is pytest.Config.ArgsSource.ARGS
    option.named = files or bool(option.keyword or option.markexpr)


def pytest_report_header(config: pytest.Config) -> str:
    named = ", all that is named" if config.option.named else ""
    return f"tier of tests: {config.option.tier}{named}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of other tiers are not even imported."""
    if config.option.named or config.option.tier != "quick" or not collection_path.match("test_*.py"):
        return None
    return True if kind(collection_path) != UNIT else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.named:
        return
    kept = chosen(items, config.option.tier, os.environ["SEGSTORE_SEED"])
    left = set(items) - set(kept)
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = kept


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    of, tier = kind(item.path), item.config.option.tier
    less = of != UNIT and tier in ("quick", "test")
    effort.share = KINDS[of].effort if less else 1.0
