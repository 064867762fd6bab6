"""Measurements that show why a log is fast. This package has the code that all measurements use, the studies,
and the command `segstore bench`.

On disk: a measurement writes into the directory that the caller names, and removes its files when it ends.
Results are written to a path that the caller names. Threads: one thread measures.

A measurement is a function `run(directory, quick, runs, progress) -> Results`. `figures` defines a figure
(the values of several runs) and the winner among figures, `results` stores results, and `plots` and
`terminal` show results.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from segstore.bench.choices import RUNS

if TYPE_CHECKING:
    from segstore.bench.figures import Figure, winner
    from segstore.bench.results import Cell, ClaimFinding, Progress, Results, load, machine, write

__all__ = [
    "RUNS",
    "Cell",
    "ClaimFinding",
    "Figure",
    "Progress",
    "Results",
    "load",
    "machine",
    "winner",
    "write",
]


def __getattr__(name: str) -> object:
    """Return a name of this package. Its submodule is imported at the first use, because the command's help
    does not need it.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "figures" if name in ("Figure", "winner") else "results"
    value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return value
