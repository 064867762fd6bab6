"""Connects a guest with the host of a shared store. The connection proves to the guest that the guest and the
host map the same memory.

The socket is `.segstore/host`, a Unix socket. A guest writes a random number into its slot of
`.segstore/shared`, and sends the slot's index. The host answers with the number that it reads from this slot,
and with the device and inode of the file that it has mapped. The answer is not what the guest expects if the
guest has mapped another file, or sees other pages of the file. A guest on another kernel finds no host,
because Unix sockets connect processes of one kernel only.

The connection stays open, so that a guest notices by a poll that the host has closed the store, or has died.

    guest: slot, int32
    host:  number, uint32; four zeros; device and inode, uint64 each

Numbers are in host byte order. Threads: a `HostSocket` has its own thread, which refers to the mapping, not
to the store, so that an unused store can be freed; a `HostLine` is used by one thread at a time.
"""

from __future__ import annotations

import errno
import secrets
import select
import socket
import struct
import time
from contextlib import suppress
from functools import partial

from segstore import names
from segstore._native import lib
from segstore.errors import HostUnavailableError, NotShareableError, StorageError
from segstore.files import Files, sockets
from segstore.storage.context import os_errors
from segstore.storage.shared.members import Members, SharedMember
from segstore.storage.shared.shared_file import SharedFile
from segstore.threads import Background

_SLOT = struct.Struct("=i")
_ANSWER = struct.Struct("=I4xQQ")
_NOBODY = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN})
"""The errors of a connect if nobody accepts connections at the socket. EAGAIN means that the host's backlog
is full.
"""
_SHORTEST, _LONGEST = 0.001, 0.05  # seconds between two tries to connect


def path_of(root: str) -> str:
    """Return the path of a store's socket."""
    return names.below(root, f"{names.OURS}/{names.HOST}")


class HostSocket:
    """The host's socket, and the thread that answers guests. In a forked child the methods do nothing."""

    def __init__(self, files: Files, root: str, shared: SharedFile) -> None:
        """Listen at the store's socket. The caller holds `.lock`. Raises StorageError; IllegalStateError if
        no thread can be started.
        """
        self._files, self._path = files, path_of(root)
        with os_errors():
            self._listener = sockets.listen(files, self._path)
        self._thread = Background(partial(_answer_all, self._listener, shared), "segstore-host")
        try:
            self._thread.start()
        except BaseException:
            self.unlink()
            self.close()
            raise

    def unlink(self) -> None:
        """Remove the path of the socket, so that no further process connects. The caller holds `.lock`. May
        be repeated.
        """
        if self._listener.fileno() >= 0:
            with suppress(OSError):
                self._files.unlink(self._path)

    def close(self) -> None:
        """Stop the thread, and close all connections. The caller has called `unlink` before. Further calls do
        nothing.
        """
        # Nothing is done if the socket was closed before, or if this process is a forked child.
        if self._listener.fileno() < 0:
            return
        # The shutdown fails if other code, for example `os.closerange`, has closed the descriptor.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


def _answer_all(listener: socket.socket, shared: SharedFile) -> None:
    """Answer guests until the listener is shut down."""
    lines: dict[int, socket.socket] = {}
    poll, number = select.poll(), listener.fileno()
    poll.register(number, select.POLLIN)
    try:
        while True:
            for fd, events in poll.poll():
                if fd == number and events & ~select.POLLIN:
                    return
                if fd == number:
                    _accept(listener, lines, poll)
                elif not _answer(lines[fd], shared):
                    poll.unregister(fd)
                    lines.pop(fd).close()
    finally:
        for line in lines.values():
            line.close()


def _accept(listener: socket.socket, lines: dict[int, socket.socket], poll: select.poll) -> None:
    try:
        line = sockets.accept(listener)
    except BlockingIOError:
        return  # the guest has already closed the connection
    except OSError:
        time.sleep(_LONGEST)  # this process has too many open files, so another `accept` would fail at once
        return
    lines[line.fileno()] = line
    poll.register(line, select.POLLIN)


def _answer(line: socket.socket, shared: SharedFile) -> bool:
    """Answer one request of a guest; return whether the connection stays open."""
    try:
        question = line.recv(_SLOT.size)
        if len(question) < _SLOT.size or not 0 <= (slot := _SLOT.unpack(question)[0]) < lib.SEG_MEMBERS:
            return False
        return line.send(_ANSWER.pack(shared.member(slot).number, *shared.which)) == _ANSWER.size
    except BlockingIOError:
        return True
    except OSError:
        return False


class HostLine:
    """Connects a guest to the host."""

    def __init__(self, files: Files, root: str, members: Members, seconds: float) -> None:
        """Connect to the host, and call `check`, all within `seconds`. Raises NotShareableError,
        StorageError; HostUnavailableError if there is no host, or if the host does not answer.
        """
        self._root, self._members = root, members
        self._socket = self._connect(path_of(root), seconds)
        try:
            self.check()
        except BaseException:
            self.close()
            raise

    def _connect(self, path: str, seconds: float) -> socket.socket:
        """Connect to the host, and return the socket. If a host lives, but does not listen, try again for
        `seconds`, because a new host takes its slot before it listens. Raises the errors of `__init__`.
        """
        end, pause = time.monotonic() + seconds, _SHORTEST
        first = self._members.host()
        while True:
            try:
                with os_errors():
                    return sockets.connect(path, max(end - time.monotonic(), _SHORTEST))
            except TimeoutError:
                raise self._unavailable() from None
            except StorageError as error:
                if error.errno not in _NOBODY:
                    raise
                is_there = error.errno == errno.EAGAIN
                is_gone = not is_there and self._members.host() is None  # `is_gone` means that no host lives
                is_late = is_gone or time.monotonic() >= end
            if is_late:
                raise self._unavailable() if is_there else self._unreachable(path, first)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)

    def _unreachable(self, path: str, first: SharedMember | None) -> HostUnavailableError | NotShareableError:
        """Return NotShareableError if the host that does not listen is still `first`, the host at the first
        try; else HostUnavailableError, because a new host may listen soon.
        """
        host = self._members.host()
        if host is None or host != first:
            return self._unavailable()
        return NotShareableError(
            f"{self._root} has a host, process {host.pid}, which this process can't reach at {path}: a store "
            "is shared by processes of one kernel only, not over virtual machines or a network"
        )

    def _unavailable(self) -> HostUnavailableError:
        host = self._members.host()
        pid = host.pid if host is not None else self._members.last_host_pid()
        return HostUnavailableError(self._root, pid, host is not None)

    def check(self) -> None:
        """Write a new random number into this member's slot. Compare the number, and the device and inode of
        the mapped file, with the host's answer. Raises NotShareableError if one of the three differs;
        HostUnavailableError if the host does not answer, or has closed the connection.
        """
        members = self._members
        own = members.shared.member(members.slot)
        own.number = number = secrets.randbits(32)
        try:
            self._socket.sendall(_SLOT.pack(members.slot))
            answer = self._receive()
        except OSError:
            raise self._unavailable() from None
        expected = (number, *members.shared.which)
        if answer != expected:
            raise NotShareableError(
                f"{self._root} is other memory for its host than for this process: number, device and inode "
                f"are {answer} there, and {expected} here. Share a store on a file system that shows all "
                "the same pages, such as ext4, XFS or tmpfs, and on a volume, not in a container's layer"
            )

    def _receive(self) -> tuple[int, ...]:
        data = b""
        while len(data) < _ANSWER.size:
            more = self._socket.recv(_ANSWER.size - len(data))
            if not more:
                raise ConnectionResetError
            data += more
        return _ANSWER.unpack(data)

    def fileno(self) -> int:
        """Return the file descriptor of the connection; -1 after `close`. It becomes readable when the host
        closes the connection.
        """
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection. Further calls do nothing."""
        self._socket.close()
