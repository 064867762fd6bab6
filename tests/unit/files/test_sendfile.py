"""The calls of Files that transfers are made of: what one moves, full sinks, signals on the way."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import PATIENCE

from segstore._native import ffi
from segstore.files import Files, Handle

files = Files()
Step = Callable[[int, Handle, int, int], int]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def open_with(path: Path, data: bytes) -> Handle:
    path.write_bytes(data)
    return files.open(path, write=True)


@pytest.fixture
def big(path: Path) -> tuple[Handle, bytes]:
    data = random.Random(7).randbytes(3_000_017)
    return open_with(path, data), data


def by_window(sink: int, handle: Handle, position: int, count: int) -> int:
    window = ffi.new("seg_window *")
    files.map_window(window, handle, position, count)
    try:
        return files.write_window(sink, window, handle, position, count)
    finally:
        files.unmap_window(window)


STEPS: dict[str, Step] = {"sendfile": files.sendfile, "window": by_window}


def send(step: Step, sink: int, handle: Handle, position: int, count: int) -> int:
    """On after signals, to the end of the file at most."""
    done = 0
    while done < count:
        try:
            sent = step(sink, handle, position + done, count - done)
        except InterruptedError:
            continue
        if not sent:
            break
        done += sent
    return done


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
def test_sendfile_to_a_socket(big: tuple[Handle, bytes], position: int, count: int) -> None:
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
        sent = send(files.sendfile, ours.fileno(), handle, position, count)
        ours.shutdown(socket.SHUT_WR)
        receiver.join(PATIENCE)
    assert (sent, bytes(got)) == (len(expected), expected)


@pytest.mark.parametrize("name", STEPS)
def test_a_full_sink_tells_what_went(big: tuple[Handle, bytes], name: str) -> None:
    handle, data = big
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        sent = STEPS[name](ours.fileno(), handle, 0, len(data))
        with pytest.raises(BlockingIOError) as full:
            STEPS[name](ours.fileno(), handle, sent, len(data) - sent)
        assert full.value.filename is None
        assert 0 < sent < len(data)
        got = bytearray()
        while len(got) < sent:
            got.extend(theirs.recv(1 << 20))
        assert bytes(got) == data[:sent]
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)  # not one byte more than was told


class Interrupt:
    """Sends SIGUSR1 to this thread every 50 ms, once it has begun; the handler sets `seen`, and raises
    `fault` the first time. (SIGALRM is pytest's.)
    """

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
        return self

    def begin(self) -> None:
        self._sender.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._sender.join(PATIENCE)
        signal.signal(signal.SIGUSR1, self._previous)


@pytest.mark.parametrize("name", STEPS)
def test_signal_handlers_run_and_it_goes_on(big: tuple[Handle, bytes], name: str) -> None:
    handle, data = big
    ours, theirs = socket.socketpair()
    got = bytearray()
    ran_while_blocked: list[bool] = []
    with ours, theirs, Interrupt() as interrupt:

        def receive() -> None:
            ran_while_blocked.append(interrupt.seen.wait(PATIENCE))
            while chunk := theirs.recv(100_000):
                got.extend(chunk)

        receiver = threading.Thread(target=receive)
        receiver.start()
        interrupt.begin()
        sent = send(STEPS[name], ours.fileno(), handle, 0, len(data))
        ours.shutdown(socket.SHUT_WR)
        receiver.join(PATIENCE)
    assert ran_while_blocked == [True]
    assert (sent, bytes(got)) == (len(data), data)


@pytest.mark.parametrize("name", STEPS)
def test_a_signal_handler_that_raises_ends_it(big: tuple[Handle, bytes], name: str) -> None:
    handle, data = big
    ours, theirs = socket.socketpair()

    def run() -> None:
        interrupt.begin()  # here, where it is expected
        send(STEPS[name], ours.fileno(), handle, 0, len(data))

    with ours, theirs, Interrupt(KeyboardInterrupt()) as interrupt, pytest.raises(KeyboardInterrupt):
        run()


def test_write_tells_what_went() -> None:
    reading, writing = os.pipe()
    assert files.write(writing, memoryview(b"abcdef")[1:5]) == 4
    assert os.read(reading, 10) == b"bcde"
    os.set_blocking(writing, False)
    assert 0 < files.write(writing, b"x" * 1_000_000) < 1_000_000
    os.close(reading)
    os.close(writing)


def test_a_window_has_whole_pages_and_refuses_what_it_has_not(big: tuple[Handle, bytes]) -> None:
    handle, data = big
    window = ffi.new("seg_window *")
    files.map_window(window, handle, 5000, 100)
    assert (window.position, window.mapped) == (4096, 1004)
    assert ffi.buffer(window.memory, window.mapped)[:] == data[4096:5100]
    for position, count in [(4095, 1), (5000, 101), (5101, 1), (5000, -1)]:
        with pytest.raises(OSError, match="Invalid argument"):
            files.write_window(1, window, handle, position, count)
    with pytest.raises(OSError, match="Invalid argument"):
        files.map_window(window, handle, 0, 10)  # it has something to let go of first
    files.unmap_window(window)
    files.unmap_window(window)
    assert (window.memory, window.mapped) == (ffi.NULL, 0)


@pytest.mark.parametrize("at", [0, 17], ids=["on a block", "within one"])
@pytest.mark.parametrize("fallback", [False, True], ids=["copy_file_range", "read and write"])
def test_copy_range(big: tuple[Handle, bytes], tmp_path: Path, fallback: bool, at: int) -> None:
    """A copy that does not begin on a block is written from a mapping."""
    handle, data = big
    with files.open(tmp_path / "copy", write=True, create=True) as target:
        if fallback:  # copy_file_range(2) refuses to append
            fcntl.fcntl(target.fd, fcntl.F_SETFL, os.O_APPEND)
        assert files.copy_range(handle, at, target, 0, 2_500_000) == 2_500_000
        assert files.copy_range(handle, 3_000_000, target, 2_500_000, 500) == 17
        assert files.copy_range(handle, len(data) + at, target, 2_500_017, 500) == 0
    assert (tmp_path / "copy").read_bytes() == data[at : 2_500_000 + at] + data[3_000_000:]
