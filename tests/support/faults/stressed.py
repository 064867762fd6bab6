"""Programs of C in `tests/support` that are built with the engine's own sources, and run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from places import REPOSITORY, SUPPORT
from waiting import PATIENCE

NATIVE = REPOSITORY / "segstore" / "_native"
STRESSED = (
    *("append", "tail", "combine", "active", "seal", "index", "scan", "commit", "ends", "producers"),
    *("hand_on", "hand_over", "io", "crc32c", "crc32", "encode", "validate", "processor"),
    *("members", "share", "share_fence", "share_host", "share_lock", "share_record", "share_sync"),
    "shared_ends",
)
"""The sources of C that an append needs, and a look at where a log ends."""


def stressed(name: str, times: int, folder: Path, *options: str) -> subprocess.CompletedProcess[str] | None:
    """Build and run a program of C with these options of the compiler; None if it can't be built so."""
    program = str(folder / name)
    sources = [str(SUPPORT / "faults" / f"{name}.c"), *(str(NATIVE / f"{name}.c") for name in STRESSED)]
    build = ["-std=gnu11", "-O1", "-g", "-pthread", f"-I{NATIVE}", *options, "-o", program, *sources]
    if subprocess.run([*compiler(), *build], capture_output=True, check=False).returncode:
        return None
    surroundings = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run(
        [program, str(folder / "log"), str(times)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env=surroundings,
    )


def watched(name: str, times: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """Build and run it as `stressed` does. The thread sanitizer looks on, if there is one that runs here."""
    done = stressed(name, times, folder, "-fsanitize=thread")
    if done is None or "unexpected memory mapping" in done.stderr:
        done = stressed(name, times, folder)
    assert done is not None
    return done


def compiler() -> list[str]:
    """Return the command of the C compiler; skip the test if there is none."""
    found = (os.environ.get("CC") or "cc").split()
    if not shutil.which(found[0]):
        pytest.skip("there is no C compiler")
    return found
