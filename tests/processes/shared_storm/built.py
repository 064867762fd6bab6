"""Builds segstore for storms: a copy of the package whose C has steps (SEGSTORE_STORM,
segstore/_native/step.h), in a directory of its own. The copy is named by a hash of its sources, and made
once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from places import REPOSITORY, environment

NEEDED = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "segstore")


def why_not() -> str | None:
    """Return the reason why it can't be built here; None where it can."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"a storm's build needs a C compiler ({compiler} is not there)"
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return "a storm's build needs Python's headers"
    return None


def build(directory: Path) -> Path:
    """Return the folder, in `directory`, whose package `segstore` has the steps."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / _hash()
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "built").exists():
            shutil.rmtree(target, ignore_errors=True)
            _make(target)
            (target / "built").touch()
    return target


def _hash() -> str:
    found = hashlib.sha256()
    for path in sorted((REPOSITORY / "segstore").rglob("*")):
        if path.suffix in (".py", ".c", ".h") and path.name != "_segstore.c":
            found.update(str(path.relative_to(REPOSITORY)).encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _make(target: Path) -> None:
    target.mkdir()
    ignored = shutil.ignore_patterns("*.so", "_segstore.c", "__pycache__")
    for name in NEEDED:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignored)
        elif source.exists():
            shutil.copy(source, target / name)
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force", "-j2"]
    done = subprocess.run(
        command, cwd=target, env={**os.environ, "SEGSTORE_STORM": "1"}, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"the storm's build failed: {done.stderr[-2000:]}")


def surroundings(built: Path) -> dict[str, str]:
    """Return the environment in which `segstore` is the package with the steps."""
    found = environment()
    found["PYTHONPATH"] = os.pathsep.join([str(built), found["PYTHONPATH"]])
    found["PYTHONSAFEPATH"] = "1"  # else `-m` puts the working directory, and its segstore, before that one
    found["SEGSTORE_STORM_BUILT"] = str(built)
    return found
