"""Members of one log that append, die within a write, and come again, as threads of C."""

from __future__ import annotations

from pathlib import Path

import pytest
from stressed import watched

pytestmark = pytest.mark.kind("programs")


def test_members_that_die_within_a_write_lose_and_double_nothing(tmp_path: Path) -> None:
    """The thread sanitizer looks on, if there is one that runs here."""
    done = watched("sharing_stress", 1000, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 50
