"""Lets tests write to a memory file system, where there is one with enough room; pytest's --basetemp names
another place.

A test that kills a process at each call copies, syncs and removes a store a hundred times, and would mostly
wait for the disk. What a SIGKILL leaves is the same in memory; what a power cut leaves is drawn (`faulty`).
Tests that need a real disk are marked `on_disk`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SHM = "/dev/shm"
ROOM = 2 << 30  # bytes that must be free; containers often have 64 MB
FILES = 100_000  # so many inodes must be free, too
PREFIX = "segstore-tests-"  # followed by the id of the process that owns the files


def place() -> str | None:
    """Return the directory for `tempfile`, which is in memory; None, for the default one, where there is no
    memory file system.
    """
    if not os.access(SHM, os.W_OK | os.X_OK):
        return None
    free = os.statvfs(SHM)
    return SHM if free.f_bavail * free.f_frsize >= ROOM and free.f_favail >= FILES else None


def directory() -> tempfile.TemporaryDirectory[str]:
    """Return a new temporary directory, which is removed at the end of its `with`, or with the process."""
    return tempfile.TemporaryDirectory(prefix="segstore-", dir=place())


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or config.option.basetemp or place() is None:
        return
    _remove_of_the_dead()
    config.option.basetemp = _ours()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Remove the files of the run, unless tests failed: these files stay for inspection until the next run
    begins.
    """
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.INTERRUPTED) and _ours().is_dir():
        shutil.rmtree(_ours(), ignore_errors=True)


def _ours() -> Path:
    return Path(SHM) / f"{PREFIX}{os.getpid()}"


def _remove_of_the_dead() -> None:
    for path in Path(SHM).glob(f"{PREFIX}*"):
        pid = path.name.removeprefix(PREFIX)
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and os.access(path, os.W_OK):
            shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def disk_dir() -> Iterator[Path]:
    """Yield a directory for the tests of one file, on the disk of `tempfile`."""
    with tempfile.TemporaryDirectory(prefix="segstore-") as made:
        yield Path(made)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Yield pytest's own directory, or one on the disk of `tempfile` for tests that are marked `on_disk`."""
    if request.node.get_closest_marker("on_disk") is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="segstore-") as made:
        yield Path(made)
