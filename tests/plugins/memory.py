"""Where tests write: in memory, where there is such a place with room; pytest's --basetemp says where else.

A store that is killed at each of its calls is copied, synced and removed a hundred times, and waits for the
disk most of that time. What a SIGKILL leaves is the same there; what power cuts leave is drawn (`faulty`).
Tests that ask something of a disk are marked `on_disk`.
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
FILES = 100_000  # and so many inodes
PREFIX = "segstore-tests-"  # and the number of the process whose files they are


def place() -> str | None:
    """The directory for `tempfile`; None, the usual one, where there is none in memory."""
    if not os.access(SHM, os.W_OK | os.X_OK):
        return None
    free = os.statvfs(SHM)
    return SHM if free.f_bavail * free.f_frsize >= ROOM and free.f_favail >= FILES else None


def directory() -> tempfile.TemporaryDirectory[str]:
    """A new one, removed at the end of its `with`, or with the process."""
    return tempfile.TemporaryDirectory(prefix="segstore-", dir=place())


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or config.option.basetemp or place() is None:
        return
    _remove_of_the_dead()
    config.option.basetemp = _ours()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """What failed is left to be looked at, until the next run begins; what was interrupted is not."""
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
    """For the tests of one file, on the disk of `tempfile`."""
    with tempfile.TemporaryDirectory(prefix="segstore-") as made:
        yield Path(made)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """pytest's own; on the disk of `tempfile` for tests that are marked `on_disk`."""
    if request.node.get_closest_marker("on_disk") is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="segstore-") as made:
        yield Path(made)
