"""The sinks, and the process at the other end of a sink. The receiver is a process of its own, so that its
CPU time is not measured with the sender's. On disk: the file sink, which is unlinked as soon as it is open.
Threads: one. Each sink is a context manager. The receiver's process exits at the end of the block, and also
if the measuring process is killed. Pipes and sockets have the kernel's default buffer sizes. TCP sockets have
the option TCP_NODELAY, as in Kafka's server.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

from segstore.cli.signals import ended_later
from segstore.errors import StorageError

_DRAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "drain.py")
_PATIENCE = 60.0  # longest wait for a receiver's answer, in seconds


class Receiver:
    """The receiving end of a sink; the bytes of a log are sent to `fd`. The caller calls `expect` with a
    number of bytes, sends these bytes, and calls `wait`.
    """

    def __init__(self, fd: int, pid: int | None = None) -> None:
        self.fd, self.pid = fd, pid

    def expect(self, size: int) -> None:
        """Prepare the receiver for `size` bytes."""
        raise NotImplementedError

    def wait(self) -> None:
        """Wait until the receiver has all expected bytes. Raises StorageError if bytes are missing."""
        raise NotImplementedError


class _Drained(Receiver):
    def __init__(self, fd: int, pid: int, control: socket.socket) -> None:
        super().__init__(fd, pid)
        self._control = control

    def expect(self, size: int) -> None:
        self._control.sendall(size.to_bytes(8, "big"))

    def wait(self) -> None:
        try:
            answered = self._control.recv(1)
        except TimeoutError:
            raise StorageError(f"the receiver lacks bytes, and none came for {_PATIENCE:.0f} s") from None
        except ConnectionError:
            answered = b""
        if not answered:
            raise StorageError("the receiver's process has ended")


class _File(Receiver):
    def expect(self, size: int) -> None:
        self._size = size
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)

    def wait(self) -> None:
        if (found := os.fstat(self.fd).st_size) != self._size:
            raise StorageError(f"the file has {found} bytes in place of {self._size}")


def _tcp() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, peer = server.accept()
        if peer != theirs.getsockname():
            raise StorageError(f"a stranger has connected from {peer}")
    ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours.detach(), theirs.detach()


def _unix() -> tuple[int, int]:
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()


def _pipe() -> tuple[int, int]:
    theirs, ours = os.pipe()
    return ours, theirs


_ENDS: dict[str, Callable[[], tuple[int, int]]] = {"tcp": _tcp, "unix": _unix, "pipe": _pipe}


@contextmanager
def sink(kind: str, directory: str, core: int | None = None) -> Iterator[Receiver]:
    """Context manager: yield a sink of the kind `kind`, one of SINKS. If `kind` is "file", the file is made
    in `directory`. `core` is the core on which the receiver's process must run, None if it may run on any
    core.
    """
    if kind == "file":
        with tempfile.TemporaryFile(dir=directory) as file:
            yield _File(file.fileno())
        return
    with ExitStack() as stack:
        ours, theirs = _ENDS[kind]()
        stack.callback(os.close, ours)
        try:
            control, asked = socket.socketpair()
            stack.enter_context(closing(control))
            control.settimeout(_PATIENCE)
            with asked, ended_later():
                process = _start(theirs, asked.fileno())
                stack.callback(_stop, process)
        finally:
            os.close(theirs)
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        yield _Drained(ours, process.pid, control)


def _start(data: int, control: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", _DRAIN, str(data), str(control)]
    # The receiver has a session of its own, so that the terminal sends Ctrl-C only to the measuring process,
    # which then stops the receiver.
    return subprocess.Popen(
        command, pass_fds=(data, control), stdin=subprocess.DEVNULL, start_new_session=True
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
