"""Counts of what tests have tried: failed calls, power cuts, seeds, kills, inputs. Writes nothing.

`record(kind, n)` adds to what the test file that runs has tried; tests/plugins/counted.py gathers that
over the processes of a run, and holds docs/reliability.md to it.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import PurePath

Counts = dict[str, Counter[str]]
"""Of each test file, by its path below the repository: how many of each kind."""

_counted: Counts = {}


def record(kind: str, n: int = 1) -> None:
    """Add to a kind of things that were tried; `faulty.report` knows them all."""
    file = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
    if file:
        _counted.setdefault(PurePath(file).as_posix(), Counter())[kind] += n


def taken() -> dict[str, dict[str, int]]:
    """What this process has counted, as plain values."""
    return {file: dict(kinds) for file, kinds in _counted.items()}
