"""Measurements of why a log is fast: what they share, the studies, and `segstore bench`.

On disk: in the directory that a caller names, removed when a measurement ends; results where the caller
wants them. Threads: one measures.

A measurement is a function `run(directory, quick, runs, progress) -> Results`; `figures` says what a figure
is and when there is a winner, `results` how they are stored, `plots` and `terminal` how they look.
"""

from __future__ import annotations

from segstore.bench.figures import RUNS, Figure, winner
from segstore.bench.results import Cell, Finding, Progress, Results, load, machine, write

__all__ = ["RUNS", "Cell", "Figure", "Finding", "Progress", "Results", "load", "machine", "winner", "write"]
