"""Chooses the tests of a run. Writes nothing.

    --tier quick   every unit test but those of whole programs, with some of its cases, drawn by SEGSTORE_SEED
    --tier test    those, more of their cases, and a draw of each other kind
    --tier rest    what `--tier test` leaves out with the same seed
    --tier all     everything; so it is without --tier
    --tier more    a seventh of what `--tier test` leaves out, drawn by SEGSTORE_DRAW (or SEGSTORE_SEED)

A file's folder, name or text tells the kind of its tests, so that most new files need no entry here. Of each
kind a share of its tests is drawn, at least one where the share is above 0: first one case of each test
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
from typing import NamedTuple, TypeVar

import pytest

Group = TypeVar("Group", bound=Hashable)
TESTS = Path(__file__).parents[1]
TIERS = ("quick", "test", "rest", "all", "more")
MORE_SHARE = 0.15

BEGAN = pytest.StashKey[float]()
BUDGETS = {"quick": 90, "test": 360}
"""Seconds that a tier may take on two quiet cores: who adds a kind of tests takes its time out of the
others."""


class Kind(NamedTuple):
    """A kind of tests, of which `make test` draws the fraction `share`.

    It has the tests of `files` (patterns of names below tests/, without suffix), those of files that match
    `text` (a regular expression), and in other files those that use one of `names`, directly or by another
    definition; a string may be such a name. A test belongs to the first kind that has it; `files` are tried
    before the others.
    """

    share: float
    files: tuple[str, ...] = ()
    text: str = "(?!)"
    names: frozenset[str] = frozenset()


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
    "Spark programs": Kind(
        0.0,
        (
            *("spark/test_demo", "spark/test_notebook", "spark/test_kill", "spark/test_kafka_connector"),
            *("spark/test_tutorial", "spark/test_archive_cluster"),
        ),
    ),
    "long kills": Kind(
        0.0,
        (
            *("crash/test_staging_kill", "crash/test_adoption_kill", "crash/test_data_directory_kill"),
            "crash/test_crash_loop",
        ),
    ),
    STORMS: Kind(0.0, ("processes/test_wire_storm", "processes/test_standby_storm")),
    "storms of a shared store": Kind(0.05, ("processes/test_shared_storm",)),
    "members of a shared store": Kind(
        0.05,
        (
            *("processes/shared/*", "processes/test_shared_members", "unit/log/test_shared_flush"),
            "unit/native/test_share_*",
        ),
    ),
    "rounds of a share group": Kind(0.03, ("processes/test_queue_judge",)),
    "rounds of an archive": Kind(0.0, ("processes/test_archive_judge",)),
    "rounds of a standby": Kind(0.0, ("processes/test_standby_rounds",)),
    "images": Kind(0.0, ("packaging/test_image",)),
    "measurements": Kind(0.0, ("bench/test_serve", "bench/test_soak", "bench/test_peers")),
    "Spark": Kind(0.03, text=r'SparkSession|judge\("spark"\)'),
    "simulation": Kind(0.03, ("models/simulation/*",)),
    "golden logs": Kind(0.08, ("models/golden_logs/*",)),
    "a log and its oracle": Kind(0.15, ("models/log_oracle/*",)),
    "simulation of replicas": Kind(0.03, ("models/replicated_simulation/*",)),
    "faults": Kind(
        0.02,
        (
            *("crash/test_failing_disks", "crash/test_refused", "crash/test_sweep_failures"),
            *("crash/test_power_cuts", "crash/test_transactions_power_cut", "crash/test_metadata_log_faults"),
            *("crash/test_metadata_snapshot_faults", "crash/test_archiver_calls"),
            *("unit/staging/test_refused", "unit/cleaner/test_swap"),
        ),
        r"from \S*driver import",
    ),
    "power cuts below C": Kind(0.04, ("crash/test_recorded",)),
    "model of shared logs": Kind(1.0, ("models/test_shared_log_model",)),
    "model of share partitions": Kind(0.5, ("models/share_partitions/*",)),
    "games of tables": Kind(0.08, ("models/table_games/*",)),
    "models": Kind(0.02, ("models/test_*", "unit/filetree/test_model", "unit/coordinator/test_assignors")),
    "model checks": Kind(0.1, ("models/replicas/test_two_replicas",)),
    "mutations": Kind(0.1, ("models/replicas/test_mutations",)),
    "model of a log's locks": Kind(1.0, ("models/log_locks/*",)),
    "long model checks": Kind(0.0, ("models/replicas/test_large_spaces",)),
    "replicated stores": Kind(0.04, ("replicated/*",)),
    "replicas of a real broker": Kind(
        0.0, ("kafka/test_our_*", "kafka/test_both_roles", "kafka/test_cut_networks")
    ),
    "clients' programs": Kind(1.0, ("server/test_java_client", "server/test_python_clients")),
    "Java's clients": Kind(0.0, ("server/test_java_*",)),
    "clients of other languages": Kind(0.0, ("server/test_other_languages",)),
    "fuzz": Kind(0.1, ("hostile/test_fuzz", "server/test_hostile_requests")),
    "damage": Kind(
        0.02,
        (
            *("hostile/test_planted_files", "hostile/test_hard_links", "hostile/test_small_files"),
            *("hostile/test_damaged_indexes", "hostile/test_*_damaged", "hostile/test_bit_rot"),
            *("unit/files/test_shrinking", "crash/test_passing_errors"),
        ),
    ),
    "interrupts": Kind(
        0.04,
        (
            *("processes/test_interrupts*", "processes/*_interrupts", "unit/aio/test_cancelled"),
            *("processes/test_storm*", "processes/test_reentry*", "processes/test_closing*"),
        ),
    ),
    "other codecs": Kind(0.1, ("server/test_other_codecs",)),
    "clients on the wire": Kind(
        0.15,
        (
            *("server/test_clients", "server/test_admin_clients", "server/test_group_clients"),
            *("server/test_security_clients", "docs/test_testing", "cli/test_bootstrap"),
        ),
    ),
    "examples": Kind(
        0.15, ("examples/test_programs", "docs/test_blocks", "docs/test_commands", "docs/test_tutorials")
    ),
    "mirrors": Kind(0.15, ("mirroring/*", "standby/*")),
    "limits": Kind(0.15, ("unit/storage/test_limits", "unit/transfer/test_sinks")),
    "Kafka's broker": Kind(0.0, text=r"judge\(\"Kafka's broker\"\)"),
    "Kafka's tools": Kind(0.04, text=r'judge\("kafka\.tools|judge\("Kafka\'s (dump tool|jar)"\)'),
    "faults of an archive": Kind(0.15, ("unit/archiving/test_faults",)),
    "S3 server": Kind(0.1, names=frozenset({"s3_server", "s3_bucket"})),
    "strace": Kind(0.15, ("processes/test_seam",), names=frozenset({"strace"})),
    "kills": Kind(
        0.03,
        ("*_kill", "processes/test_jepsen"),
        names=frozenset({"SIGKILL", "KillingFiles", "killed_at_each_call", "in_child"}),
    ),
    "programs": Kind(
        0.03,
        (
            *("demo/*", "bench/*", "docs/test_reliability"),
            *("processes/test_programs_*", "processes/test_opening_together"),
            *("processes/test_tiers", "processes/test_surroundings"),
        ),
        names=frozenset(
            {
                *("subprocess", "multiprocessing", "fork", "COMMAND", "start_program", "Terminal"),
                *("unshared", "mounting", "stressed", "watched", "gunicorn"),
            }
        ),
    ),
    "costly unit tests": Kind(0.06, names=frozenset({"costly"})),
}


@cache
def _named(file: Path) -> str | None:
    """Return the kind of all tests of a file, where its name or its text decides; else None."""
    name, text = _name(file), _text(file)
    by_name = [kind for kind, each in KINDS.items() if any(fnmatch(name, f) for f in each.files)]
    by_text = (kind for kind, each in KINDS.items() if re.search(each.text, text))
    return by_name[0] if by_name else next(by_text, None)


def _name(file: Path) -> str:
    return file.relative_to(TESTS).with_suffix("").as_posix() if file.is_relative_to(TESTS) else file.stem


@cache
def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@cache
def _users(file: Path, names: frozenset[str]) -> set[str]:
    """Return the definitions of a module that use one of `names`, directly or by another definition of the
    module.
    """
    if not any(name in _text(file) for name in names):
        return set()
    uses = _uses(file)
    found: set[str] = set()
    while more := {name for name, used in uses.items() if used & (names | found)} - found:
        found |= more
    return found


@cache
def _uses(file: Path) -> dict[str, set[str]]:
    """Return the names and strings that each definition of a module uses."""
    uses: dict[str, set[str]] = {}
    for node in ast.parse(_text(file)).body:
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
        for name in _defined(node):
            uses.setdefault(name, set()).update(used)
    return uses


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [n.id for target in targets if target for n in ast.walk(target) if isinstance(n, ast.Name)]


@cache
def kind(file: Path, function: str) -> str:
    """Return the kind of a test function, or of the class that it is in: one of KINDS, or UNIT."""
    if found := _named(file):
        return found
    return next((k for k, each in KINDS.items() if function in _users(file, each.names)), UNIT)


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
        found.update(_drawn(tests, UNIT_SHARE if of == UNIT else KINDS[of].share, f"{seed} {of}"))
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
    return _named(file) is None and not any(fnmatch(_name(file), pattern) for pattern in PROGRAMS)


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
