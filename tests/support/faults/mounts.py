"""Runs commands in a mount namespace of their own, where that is permitted. Writes nothing."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from waiting import PATIENCE


def unshared(*commands: str) -> subprocess.CompletedProcess[str]:
    """Run shell commands in a mount namespace of their own. Paths in them must be quoted."""
    return subprocess.run(
        ["unshare", "-rm", "sh", "-ec", "\n".join(commands)], capture_output=True, text=True, timeout=PATIENCE
    )


@pytest.fixture
def mounting() -> None:
    if not shutil.which("unshare") or unshared("mount -t tmpfs none /mnt").returncode:
        pytest.skip("mounting is not permitted here")
