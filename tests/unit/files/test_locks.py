"""segstore.files.locks through Files: who holds a lock, who is kept out, what a fork leaves."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults import FailingFiles
from waiting import PATIENCE

from segstore.files import Files, Handle

files = Files()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def open_with(path: Path, data: bytes) -> Handle:
    path.write_bytes(data)
    return files.open(path, write=True)


def test_lock_excludes_and_names_its_holder(path: Path) -> None:
    assert files.lock_holder(path) is None
    with files.lock(path):
        assert path.read_bytes() == str(os.getpid()).encode()
        assert files.lock_holder(path) == os.getpid()
        assert files.is_locked(path)
        with pytest.raises(BlockingIOError) as caught:
            files.lock(path)
        assert caught.value.filename == str(path)
        path.open().close()  # closing another descriptor must not drop it, as it would a POSIX lock
        assert files.is_locked(path)
    assert files.lock_holder(path) is None
    files.lock(path).close()


def test_lock_holder_of_garbage_is_unknown(path: Path) -> None:
    with files.lock(path):
        path.write_bytes(b"none")
        assert files.lock_holder(path) == 0
        assert files.is_locked(path)


def test_lock_that_cannot_write_its_pid_is_given_back(path: Path) -> None:
    with pytest.raises(OSError) as caught:
        FailingFiles(["pwrite"], OSError(errno.ENOSPC, "full")).lock(path)
    assert caught.value.errno == errno.ENOSPC
    assert not files.is_locked(path)


POSIX_LOCK = """
import fcntl, sys
f = open(sys.argv[1], "r+")
fcntl.lockf(f, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.mark.kind("programs")
def test_a_posix_lock_as_a_broker_takes_it_excludes_ours_and_is_named(path: Path) -> None:
    path.write_bytes(b"1")
    with subprocess.Popen(
        [sys.executable, "-c", POSIX_LOCK, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        assert files.lock_holder(path) == child.pid
        with pytest.raises(BlockingIOError):
            files.lock(path)
        assert path.read_bytes() == b"1"
        child.communicate("", timeout=PATIENCE)
    assert files.lock_holder(path) is None


@pytest.mark.kind("programs")
def test_our_lock_excludes_a_posix_lock(path: Path) -> None:
    with files.lock(path):
        child = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        done = subprocess.run(
            [sys.executable, "-c", child, str(path)], capture_output=True, text=True, timeout=PATIENCE
        )
    assert "BlockingIOError" in done.stderr


@pytest.mark.kind("kills")
def test_a_forked_child_does_not_keep_the_lock(path: Path) -> None:
    handle = files.lock(path)
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writing, b"%d" % handle.fd)
        os.close(writing)
        time.sleep(PATIENCE)
        os._exit(0)
    os.close(writing)
    try:
        assert os.read(reading, 10) == b"-1"
        assert files.lock_holder(path) == os.getpid()
        handle.close()
        assert files.lock_holder(path) is None
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
