"""setup.py, which builds the part in C: what it says on a machine that can't."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.kind("programs")

ROOT = Path(__file__).parents[2]


def test_a_machine_without_a_compiler_is_told_what_it_needs() -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "bdist_wheel"],
        cwd=ROOT,
        env={**os.environ, "CC": "no-such-compiler -O2"},
        capture_output=True,
        text=True,
        check=False,
    )
    told = (
        "whose build needs a C compiler (no-such-compiler is not there). Debian, Ubuntu: apt-get install gcc"
    )
    assert (done.returncode, told in done.stderr, "Traceback" in done.stderr) == (1, True, False), done.stderr
