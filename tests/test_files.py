"""segstore.files and segstore.locks: what is on disk, which errors come through, who holds a lock."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import MUTATING, CountingFiles, FailingFiles, KillingFiles

from segstore.files import Files, Handle

files = Files()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def open_with(path: Path, data: bytes) -> Handle:
    path.write_bytes(data)
    return files.open(path, write=True)


# --- open ---------------------------------------------------------------------


def test_open_create_makes_an_empty_file_for_its_owner_only(path: Path) -> None:
    with files.open(path, write=True, create=True) as handle:
        assert stat.S_IMODE(os.fstat(handle.fd).st_mode) == 0o600
        assert not os.get_inheritable(handle.fd)
    assert files.size(path) == 0


def test_open_create_keeps_what_is_there(path: Path) -> None:
    path.write_bytes(b"old")
    with files.open(path, write=True, create=True) as handle:
        assert files.pread(handle, 10, 0) == b"old"


def make_link(path: Path) -> None:
    path.with_name("target").write_bytes(b"")
    path.symlink_to("target")


@pytest.mark.parametrize(
    ("make", "write", "number"),
    [
        pytest.param(lambda p: None, False, errno.ENOENT, id="missing"),
        pytest.param(make_link, False, errno.ELOOP, id="symbolic link"),
        pytest.param(lambda p: p.mkdir(), False, errno.EINVAL, id="directory"),
        pytest.param(lambda p: p.mkdir(), True, errno.EISDIR, id="directory to write"),
        pytest.param(os.mkfifo, False, errno.EINVAL, id="fifo without a writer"),
        pytest.param(os.mkfifo, True, errno.EINVAL, id="fifo to write"),
    ],
)
def test_open_refuses(path: Path, make: Callable[[Path], Any], write: bool, number: int) -> None:
    make(path)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError) as caught:
        files.open(path, write=write)
    assert caught.value.errno == number
    assert len(os.listdir("/proc/self/fd")) == before


def test_handle_closes_once_and_with_its_last_reference(path: Path) -> None:
    handle = open_with(path, b"x")
    fd = handle.fd
    handle.close()
    handle.close()
    assert handle.fileno() == -1
    with pytest.raises(OSError) as caught:
        files.pread(handle, 1, 0)
    assert (caught.value.errno, caught.value.filename) == (errno.EBADF, str(path))
    other = files.open(path)
    fd = other.fd
    del other
    gc.collect()
    with pytest.raises(OSError):
        os.fstat(fd)


# --- reading and writing ------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "position", "expected"),
    [
        pytest.param(4, 0, b"0123", id="start"),
        pytest.param(4, 8, b"89", id="short at the end"),
        pytest.param(4, 10, b"", id="at the end"),
        pytest.param(4, 99, b"", id="behind the end"),
        pytest.param(0, 3, b"", id="nothing"),
    ],
)
def test_pread(path: Path, size: int, position: int, expected: bytes) -> None:
    with open_with(path, b"0123456789") as handle:
        assert files.pread(handle, size, position) == expected
        buffer = bytearray(b"." * size)
        assert files.pread_into(handle, buffer, position) == len(expected)
        assert buffer == expected.ljust(size, b".")


@pytest.mark.parametrize(
    "data", [b"abc", bytearray(b"abc"), memoryview(b"xabcx")[1:4]], ids=lambda d: type(d).__name__
)
def test_pwrite_takes_bytes_like(path: Path, data: Any) -> None:
    with open_with(path, b"0123456789") as handle:
        assert files.pwrite(handle, data, 2) == 3
        assert files.pwrite(handle, b"", 5) == 0
    assert path.read_bytes() == b"01abc56789"


@pytest.mark.parametrize("n", [0, 1, 3, 1023, 1024, 1025, 5000])
def test_pwritev_splits_at_iov_max_and_skips_empty_buffers(path: Path, n: int) -> None:
    buffers = [bytes([i % 251]) * (i % 7) for i in range(n)]
    with open_with(path, b"##") as handle:
        assert files.pwritev(handle, buffers, 2) == sum(map(len, buffers))
    assert path.read_bytes() == b"##" + b"".join(buffers)


def test_errors_name_errno_and_path(path: Path) -> None:
    path.write_bytes(b"x")
    with files.open(path) as handle:
        for call in (
            lambda: files.pwrite(handle, b"y", 0),
            lambda: files.pwritev(handle, [b"y"], 0),
            lambda: files.allocate(handle, 0, 10),
            lambda: files.truncate(handle, 0),
        ):
            with pytest.raises(OSError) as caught:
                call()
            assert caught.value.errno in (errno.EBADF, errno.EINVAL)
            assert caught.value.filename == str(path)


def test_a_full_disk_is_told_and_the_rest_stays_to_be_cut(path: Path) -> None:
    """RLIMIT_FSIZE stands for the full disk: a short write first, then the error."""
    child = """
import errno, os, resource, signal, sys
from segstore.files import Files
files, path = Files(), sys.argv[1]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
handle = files.open(path, write=True, create=True)
for write in (
    lambda: files.pwrite(handle, b"x" * 600, 500),
    lambda: files.pwritev(handle, [b"x" * 300] * 2, 500),
):
    try:
        write()
    except OSError as e:
        assert e.errno == errno.EFBIG, e
    else:
        raise AssertionError("no error")
    assert files.size(handle) == 1000
    files.truncate(handle, 500)
files.pwrite(handle, b"y" * 500, 500)
"""
    subprocess.run([sys.executable, "-c", child, str(path)], check=True, timeout=60)


def test_allocate_leaves_no_holes(path: Path) -> None:
    with open_with(path, b"abc") as handle:
        files.allocate(handle, 3, 65533)
        assert os.fstat(handle.fd).st_size == 65536
        assert os.fstat(handle.fd).st_blocks * 512 >= 65536
        assert files.pread(handle, 5, 0) == b"abc\0\0"


# --- mapping --------------------------------------------------------------------


def test_map_outlives_the_handle_and_keeps_no_descriptor(path: Path) -> None:
    handle = open_with(path, b"0" * 10000)
    before = len(os.listdir("/proc/self/fd"))
    memory = files.map(handle, 10000, write=True)
    assert len(os.listdir("/proc/self/fd")) == before
    handle.close()
    memory[9990:9993] = b"abc"
    assert path.read_bytes()[9990:9993] == b"abc"
    memory.close()


def test_a_read_only_map_refuses_to_be_written_and_follows_the_file(path: Path) -> None:
    with open_with(path, b"abc") as handle:
        memory = files.map(handle, 3)
        files.pwrite(handle, b"X", 1)
        assert memory[:] == b"aXc"
        with pytest.raises(TypeError):
            memory[0:1] = b"y"


@pytest.mark.parametrize("length", [0, -1, 11, 1 << 40])
def test_map_refuses_what_would_be_a_sigbus(path: Path, length: int) -> None:
    with open_with(path, b"0123456789") as handle, pytest.raises(OSError) as caught:
        files.map(handle, length)
    assert caught.value.errno == errno.EINVAL


def test_map_to_write_needs_a_writable_handle(path: Path) -> None:
    path.write_bytes(b"abc")
    with files.open(path) as handle, pytest.raises(PermissionError):
        files.map(handle, 3, write=True)


# --- names and whole files ---------------------------------------------------------


def test_names(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    files.mkdir(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "a").write_bytes(b"1234")
    files.rename(folder / "a", folder / "b")
    files.sync_dir(folder)
    assert files.listdir(folder) == ["b"]
    assert (files.size(folder / "b"), files.exists(folder / "b"), files.exists(folder / "a")) == (
        4,
        True,
        False,
    )
    assert not files.exists(folder / "b" / "below a file")
    files.unlink(folder / "b")
    files.rmdir(folder)
    assert not files.exists(folder)


def test_read_file_is_bounded(path: Path) -> None:
    path.write_bytes(b"12345")
    assert files.read_file(path, limit=5) == b"12345"
    with pytest.raises(OSError) as caught:
        files.read_file(path, limit=4)
    assert caught.value.errno == errno.EFBIG


@pytest.mark.parametrize(
    ("sync", "expected"),
    [
        pytest.param(True, ["open", "truncate", "pwrite", "sync", "rename", "sync_dir"], id="durable"),
        pytest.param(False, ["open", "truncate", "pwrite", "rename"], id="not synced"),
    ],
)
def test_write_atomic_syncs_before_the_rename(path: Path, sync: bool, expected: list[str]) -> None:
    counting = CountingFiles()
    path.with_name("file.tmp").write_bytes(b"left over from a crash, and longer")
    counting.write_atomic(path, b"new", sync=sync)
    assert [name for name, _ in counting.calls] == ["write_atomic", *expected]
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("step", ["open", "truncate", "pwrite", "sync", "rename"])
def test_write_atomic_that_fails_leaves_the_old_content_and_nothing_else(path: Path, step: str) -> None:
    path.write_bytes(b"old")
    failing = FailingFiles([step], OSError(errno.EIO, "no"))
    with pytest.raises(OSError) as caught:
        failing.write_atomic(path, b"new")
    assert (caught.value.errno, failing.hits) == (errno.EIO, 1)
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == ["file"]


def test_write_atomic_killed_at_every_step_leaves_old_or_new(path: Path) -> None:
    path.write_bytes(b"old")
    for nth in range(1, 10):
        pid = os.fork()
        if not pid:
            KillingFiles(nth, MUTATING).write_atomic(path, b"new")
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert path.read_bytes() == (b"old" if nth <= 4 else b"new"), nth
        if not os.WIFSIGNALED(status):
            break
    assert nth == 6  # truncate, pwrite, sync, rename, sync_dir; the sixth does not exist


# --- transfers ------------------------------------------------------------------

METHODS = ["sendfile", "splice", "copy"]


def transfer(method: str, sink: int, handle: Handle, position: int, count: int) -> int:
    if method == "sendfile":
        return files.sendfile(sink, handle, position, count)
    if method == "copy":
        return files.copy(sink, handle, position, count, bytearray(5000))
    pipe = os.pipe()
    try:
        sent = files.splice(sink, handle, position, count, pipe)
        os.set_blocking(pipe[0], False)
        with pytest.raises(BlockingIOError):
            os.read(pipe[0], 1)  # the pipe is left empty, also after an error
        return sent
    finally:
        os.close(pipe[0])
        os.close(pipe[1])


@pytest.fixture
def big(path: Path) -> tuple[Handle, bytes]:
    data = random.Random(7).randbytes(3_000_017)
    return open_with(path, data), data


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("position", "count"),
    [
        pytest.param(0, 10, id="few bytes"),
        pytest.param(17, 3_000_000, id="to the end"),
        pytest.param(2_999_000, 5000, id="the file ends"),
        pytest.param(4_000_000, 10, id="behind the end"),
        pytest.param(5, 0, id="nothing"),
    ],
)
def test_transfer_to_a_socket(big: tuple[Handle, bytes], method: str, position: int, count: int) -> None:
    handle, data = big
    expected = data[position : position + count]
    ours, theirs = socket.socketpair()
    got = bytearray()

    def receive() -> None:
        while chunk := theirs.recv(50_000):
            got.extend(chunk)

    with ours, theirs:
        receiver = threading.Thread(target=receive)
        receiver.start()
        sent = transfer(method, ours.fileno(), handle, position, count)
        ours.shutdown(socket.SHUT_WR)
        receiver.join(30)
    assert (sent, bytes(got)) == (len(expected), expected)


@pytest.mark.parametrize("method", METHODS)
def test_transfer_to_a_full_sink_tells_what_went(big: tuple[Handle, bytes], method: str) -> None:
    handle, data = big
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        sent = transfer(method, ours.fileno(), handle, 0, len(data))
        assert 0 < sent < len(data)
        with pytest.raises(BlockingIOError):
            transfer(method, ours.fileno(), handle, sent, 1_000_000)
        got = bytearray()
        while len(got) < sent:
            got.extend(theirs.recv(1 << 20))
        assert bytes(got) == data[:sent]
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)  # not one byte more than was told


class Interrupt:
    """Sends SIGUSR1 to this thread every 50 ms; the handler sets `seen`. (SIGALRM is pytest's.)"""

    def __init__(self, fault: BaseException | None = None) -> None:
        self.seen, self._stop, self._fault = threading.Event(), threading.Event(), fault

    def _handle(self, *_: object) -> None:
        if not self.seen.is_set():
            self.seen.set()
            if self._fault is not None:
                raise self._fault

    def _send(self, thread: int) -> None:
        while not self._stop.wait(0.05):
            signal.pthread_kill(thread, signal.SIGUSR1)

    def __enter__(self) -> Interrupt:
        self._previous = signal.signal(signal.SIGUSR1, self._handle)
        self._sender = threading.Thread(target=self._send, args=(threading.get_ident(),))
        self._sender.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._sender.join(30)
        signal.signal(signal.SIGUSR1, self._previous)


@pytest.mark.parametrize("method", METHODS)
def test_transfer_lets_signal_handlers_run_and_goes_on(big: tuple[Handle, bytes], method: str) -> None:
    handle, data = big
    ours, theirs = socket.socketpair()
    got = bytearray()
    ran_while_blocked: list[bool] = []
    with ours, theirs, Interrupt() as interrupt:

        def receive() -> None:
            ran_while_blocked.append(interrupt.seen.wait(10))
            while chunk := theirs.recv(100_000):
                got.extend(chunk)

        receiver = threading.Thread(target=receive)
        receiver.start()
        sent = transfer(method, ours.fileno(), handle, 0, len(data))
        ours.shutdown(socket.SHUT_WR)
        receiver.join(30)
    assert ran_while_blocked == [True]
    assert (sent, bytes(got)) == (len(data), data)


@pytest.mark.parametrize("method", METHODS)
def test_a_signal_handler_that_raises_ends_a_transfer(big: tuple[Handle, bytes], method: str) -> None:
    handle, data = big
    ours, theirs = socket.socketpair()
    with ours, theirs, Interrupt(KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        transfer(method, ours.fileno(), handle, 0, len(data))


def test_transfer_to_a_closed_peer_is_an_error(big: tuple[Handle, bytes]) -> None:
    handle, _ = big
    for method in METHODS:
        ours, theirs = socket.socketpair()
        with ours:
            theirs.close()
            with pytest.raises(BrokenPipeError):
                transfer(method, ours.fileno(), handle, 0, 100_000)


def test_write_sends_all(path: Path) -> None:
    reading, writing = os.pipe()
    assert files.write(writing, memoryview(b"abcdef")[1:5]) == 4
    assert os.read(reading, 10) == b"bcde"
    os.set_blocking(writing, False)
    assert 0 < files.write(writing, b"x" * 1_000_000) < 1_000_000
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("fallback", [False, True], ids=["copy_file_range", "read and write"])
def test_copy_range(big: tuple[Handle, bytes], tmp_path: Path, fallback: bool) -> None:
    handle, data = big
    with files.open(tmp_path / "copy", write=True, create=True) as target:
        if fallback:  # copy_file_range(2) refuses to append
            fcntl.fcntl(target.fd, fcntl.F_SETFL, os.O_APPEND)
        assert files.copy_range(handle, 17, target, 0, 2_500_000) == 2_500_000
        assert files.copy_range(handle, 3_000_000, target, 2_500_000, 500) == 17
    assert (tmp_path / "copy").read_bytes() == data[17:2_500_017] + data[3_000_000:]


# --- locks ------------------------------------------------------------------------


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
        child.communicate("", timeout=30)
    assert files.lock_holder(path) is None


def test_our_lock_excludes_a_posix_lock(path: Path) -> None:
    with files.lock(path):
        child = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        done = subprocess.run(
            [sys.executable, "-c", child, str(path)], capture_output=True, text=True, timeout=60
        )
    assert "BlockingIOError" in done.stderr


def test_a_forked_child_does_not_keep_the_lock(path: Path) -> None:
    handle = files.lock(path)
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writing, b"%d" % handle.fd)
        os.close(writing)
        time.sleep(60)
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
