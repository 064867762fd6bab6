"""Transfers of Files: every byte once, full and closed sinks, signals on the way."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
import threading
from pathlib import Path

import pytest

from segstore.files import Files, Handle

files = Files()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def open_with(path: Path, data: bytes) -> Handle:
    path.write_bytes(data)
    return files.open(path, write=True)


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
