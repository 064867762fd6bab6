"""The line between the host of a shared store and its guests, by which each guest knows that both see one
memory.

On disk `.segstore/host`, a Unix socket. A guest puts a random number into its slot of `.segstore/shared`, and
sends the slot's number; the host answers with the number that it reads there, and with device and inode of
its file. A guest on another kernel finds no host at the socket, since a connection leads to processes of the
same kernel only; one whose mapping shows other pages, or another file, hears another number. No list of file
systems is needed for that.

The connection stays open. It hangs up when the host closes or dies, which a guest polls for.

    guest: slot, int32
    host:  number, uint32; four zeros; device and inode, uint64 each

All in host byte order. Threads: a `HostSocket` has one of its own, which refers to the mapping and to no
store; a `HostLine` is used by one thread at a time.
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
"""Errors of a socket at which nobody listens, the last one of a host that has accepted none of many guests.
"""
_SHORTEST, _LONGEST = 0.001, 0.05  # seconds between two tries to connect


def path_of(root: str) -> str:
    """Return the path of a store's socket."""
    return names.below(root, f"{names.OURS}/{names.HOST}")


class HostSocket:
    """The host's side: a thread that answers. In a child process it does nothing."""

    def __init__(self, files: Files, root: str, shared: SharedFile) -> None:
        """Listen at the store's socket. The caller holds `.lock`. Raises StorageError, IllegalStateError if
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
        """Remove the socket's name, while the caller still holds `.lock`. May be repeated."""
        if self._listener.fileno() >= 0:
            with suppress(OSError):
                self._files.unlink(self._path)

    def close(self) -> None:
        """End the thread and all connections, behind `unlink`. Further calls do nothing."""
        if self._listener.fileno() < 0:  # also in a child process
            return
        with suppress(OSError):  # a foreign close, as by closerange
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
        return  # it has gone again
    except OSError:
        time.sleep(_LONGEST)  # no descriptor is left: the guest waits, and this thread does not spin
        return
    lines[line.fileno()] = line
    poll.register(line, select.POLLIN)


def _answer(line: socket.socket, shared: SharedFile) -> bool:
    """Answer one question; return whether the connection goes on."""
    try:
        asked = line.recv(_SLOT.size)
        if len(asked) < _SLOT.size or not 0 <= (slot := _SLOT.unpack(asked)[0]) < lib.SEG_MEMBERS:
            return False
        return line.send(_ANSWER.pack(shared.member(slot).number, *shared.which)) == _ANSWER.size
    except BlockingIOError:
        return True
    except OSError:
        return False


class HostLine:
    """A guest's connection with the host."""

    def __init__(self, files: Files, root: str, members: Members, seconds: float) -> None:
        """Connect with the host, and `check`, all within `seconds`. Raises HostUnavailableError if there is
        no host, or if it does not answer; NotShareableError; StorageError.
        """
        self._root, self._members = root, members
        self._socket = self._connect(path_of(root), seconds)
        try:
            self.check()
        except BaseException:
            self.close()
            raise

    def _connect(self, path: str, seconds: float) -> socket.socket:
        """Connect, also with a host that is about to listen: it takes its slot first, and as it closes it
        lets go of the socket first.
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
                is_gone = not is_there and self._members.host() is None  # nobody is about to listen
                is_late = is_gone or time.monotonic() >= end
            if is_late:
                raise self._unavailable() if is_there else self._unreachable(path, first)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)

    def _unreachable(self, path: str, first: SharedMember | None) -> HostUnavailableError | NotShareableError:
        """Return the error for a host that does not listen: a host that has just come, after `first`, may
        still be about to.
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
        """Have the host say back a new number. Raises NotShareableError if it says another one, or has
        another file; HostUnavailableError if it does not answer, or has hung up.
        """
        members = self._members
        own = members.shared.member(members.slot)
        own.number = number = secrets.randbits(32)
        try:
            self._socket.sendall(_SLOT.pack(members.slot))
            said = self._receive()
        except OSError:
            raise self._unavailable() from None
        expected = (number, *members.shared.which)
        if said != expected:
            raise NotShareableError(
                f"{self._root} is other memory for its host than for this process: number, device and inode "
                f"are {said} there, and {expected} here. Share a store on a file system that shows all "
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
        """Return the descriptor, which can be read when the host has hung up; -1 once closed."""
        return self._socket.fileno()

    def close(self) -> None:
        """Hang up. Further calls do nothing."""
        self._socket.close()
