"""Measures why a log is fast. This package has what the measurements share, the studies, and the command
`segstore bench`.

On disk: a measurement writes into the directory that the caller names, and removes its files when it ends;
results go where the caller wants them. Threads: one thread measures.

A measurement is a function `run(directory, quick, runs, progress) -> Results`; `figures` says what a figure
is and when there is a winner, `results` how results are stored, `plots` and `terminal` how they are shown.
"""

from __future__ import annotations

from segstore.bench.figures import RUNS, Figure, winner
from segstore.bench.results import Cell, Finding, Progress, Results, load, machine, write

__all__ = ["RUNS", "Cell", "Figure", "Finding", "Progress", "Results", "load", "machine", "winner", "write"]
