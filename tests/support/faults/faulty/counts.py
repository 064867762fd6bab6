"""Counts what tests have tried: failed calls, power cuts, seeds, kills, inputs. Writes nothing.

`record(kind, n)` adds to the count of the running test file; tests/plugins/counted.py gathers the counts from
the processes of a run, and compares docs/reliability.md with them.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import PurePath

Counts = dict[str, Counter[str]]
"""The counts of each kind for each test file, by its path below the repository."""

_counted: Counts = {}


def record(kind: str, n: int = 1) -> None:
    """Add to the count of a kind; `faulty.report` lists all kinds."""
    file = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
    if file:
        _counted.setdefault(PurePath(file).as_posix(), Counter())[kind] += n


def taken() -> dict[str, dict[str, int]]:
    """Return what this process has counted, as plain values."""
    return {file: dict(kinds) for file, kinds in _counted.items()}
