"""Knows the paths of the repository, and how a process that a test starts finds them."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
TESTS = REPOSITORY / "tests"
SUPPORT = TESTS / "support"
GOLDEN = TESTS / "golden"
ROOMS = sorted(each for each in SUPPORT.iterdir() if each.is_dir())
IMPORTED = [str(TESTS / room) for room in ("plugins", "models", "processes", "hostile")]
IMPORTED += map(str, ROOMS)
"""Folders whose modules and packages tests import by their own names, as pyproject.toml lists them."""


def environment(*more: str) -> dict[str, str]:
    """Return the environment of a child that imports what tests import. A build that PYTHONPATH names is
    still found first.
    """
    before = os.environ.get("PYTHONPATH")
    path = [*([before] if before else []), *IMPORTED, *more]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
