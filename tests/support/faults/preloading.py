"""Compiles the libraries of `tests/support/faults/*.c`, which stand before the system's by LD_PRELOAD."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from places import SUPPORT


def compiled(name: str, folder: Path) -> Path:
    """Return the library of `tests/support/faults/<name>.c`, in this folder. Skips the test without a
    compiler.
    """
    compiler = (os.environ.get("CC") or "cc").split()
    if not shutil.which(compiler[0]):
        pytest.skip("there is no C compiler")
    made = folder / f"{name}.so"
    source = str(SUPPORT / "faults" / f"{name}.c")
    subprocess.run([*compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", str(made), source], check=True)
    return made
