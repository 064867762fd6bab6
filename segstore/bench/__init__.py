"""Measures why a log is fast. This package has what the measurements share, the studies, and the command
`segstore bench`.

On disk: a measurement writes into the directory that the caller names, and removes its files when it ends;
results go where the caller wants them. Threads: one thread measures.

A measurement is a function `run(directory, quick, runs, progress) -> Results`; `figures` says what a figure
is and when there is a winner, `results` how results are stored, `plots` and `terminal` how they are shown.
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
    """Import what measures when it is first asked for: the help of the command does not need it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "figures" if name in ("Figure", "winner") else "results"
    value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return value
