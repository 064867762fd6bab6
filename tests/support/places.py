"""Where things lie in the repository, and how a process that a test starts finds them. Nothing on disk."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
TESTS = REPOSITORY / "tests"
SUPPORT = TESTS / "support"
GOLDEN = TESTS / "golden"
IMPORTED = [str(TESTS / room) for room in ("plugins", "support", "models", "processes", "hostile")]
"""Folders whose modules and packages tests import by their own names: those of pyproject.toml."""


def environment(*more: str) -> dict[str, str]:
    """Of a child that imports what tests do; a build that PYTHONPATH names stays the first that is found."""
    before = os.environ.get("PYTHONPATH")
    path = [*([before] if before else []), *IMPORTED, *more]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
