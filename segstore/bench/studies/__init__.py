"""Studies of why a log is fast, one module for each.

On disk: a directory of its own below the one that is given, removed at the end of a run, also by Ctrl-C.
Threads: one runs; children, where there are any, end with it.

Each module has NAME, QUESTION (one sentence), ABOUT (what is measured, and what limits it), SHOWN (the
figures for which a table on a terminal has room), `run`, `findings` and `plot`. `findings` reads only the
cells that it is given, so that its sentences follow from them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from segstore.bench.results import Finding, Progress, Results
from segstore.errors import InvalidArgumentError
from segstore.files import Path

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture


class Study(Protocol):
    """What a study's module has."""

    NAME: str
    QUESTION: str
    ABOUT: str
    SHOWN: tuple[str, ...]

    def run(self, directory: Path, quick: bool, runs: int, progress: Progress) -> Results:
        """Measure; `quick`: in seconds, with little data, to see that it works."""

    def findings(self, results: Results) -> list[Finding]:
        """What the cells say to what people claim."""

    def plot(self, results: Results) -> Picture:
        """One picture of all."""


MODULES = {
    "sequential-writes": "sequential",
    "append-ways": "append_ways",
    "caches": "caches",
    "batching": "batching",
    "compression": "compression",
    "index-interval": "index_interval",
    "partitions": "partitions",
}


def study(name: str) -> Study:
    """A study by its name. Raises InvalidArgumentError."""
    if name not in MODULES:
        raise InvalidArgumentError(f"no study is named {name!r}; there are {', '.join(MODULES)}")
    return cast("Study", import_module(f"{__name__}.{MODULES[name]}"))


def studies() -> list[Study]:
    """All of them, in order."""
    return [study(name) for name in MODULES]
