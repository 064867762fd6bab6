"""Counts of what the tests of faults ran, in build/counts/ beside the repository's code: one file a process.

`record(kind, n)` adds; `total()` is the sum over the files of the latest run, as the report takes it.
"""

from __future__ import annotations

import atexit
import json
import os
from collections import Counter
from pathlib import Path

DIRECTORY = Path(__file__).parents[2] / "build" / "counts"
_counted: Counter[str] = Counter()


def record(kind: str, n: int = 1) -> None:
    """Add to a kind of things that were tried."""
    if not _counted:
        atexit.register(_write)
    _counted[kind] += n


def _run() -> str:
    """The same for all processes of one run."""
    return os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"pid-{os.getpid()}"


def _write() -> None:
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for old in DIRECTORY.glob("*.json"):
        if not old.name.startswith(_run()):
            old.unlink(missing_ok=True)
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    (DIRECTORY / f"{_run()}-{worker}.json").write_text(json.dumps(_counted, indent=1, sort_keys=True) + "\n")


def total() -> Counter[str]:
    """Of the latest run."""
    found: Counter[str] = Counter()
    for path in DIRECTORY.glob("*.json"):
        found.update(json.loads(path.read_text()))
    return found
