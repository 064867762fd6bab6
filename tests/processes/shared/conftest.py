"""What tests of a shared store have in common."""

from __future__ import annotations

from pathlib import Path

import pytest
from preloading import compiled


@pytest.fixture
def halting(tmp_path: Path) -> Path:
    """Return a library that stops or kills a process within a call of the system."""
    return compiled("halting", tmp_path)
