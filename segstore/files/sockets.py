"""Unix sockets with a name in a directory: one process listens, others connect.

On disk is a socket, with the mode of new files. If a path is longer than the 108 bytes that the system takes,
`/proc/self/fd` stands for its directory. Child processes inherit no descriptor. Threads: functions without
state.

This module is not part of `Files`, so that only processes that share a store import `socket`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import TypeVar

from segstore.files import Files
from segstore.files.forks import close_in_children
from segstore.files.handle import CODING, Handle, named
from segstore.idle_files import with_descriptors

T = TypeVar("T")

_LONGEST = 107  # bytes of a path, without the terminating zero
_WAITING = 128  # connections that nobody has accepted yet


def listen(files: Files, path: str) -> socket.socket:
    """Return a socket that listens at a path, and never blocks; a file of this name is replaced. Raises
    OSError.
    """
    listener = _socket()
    try:
        if files.exists(path):
            files.unlink(path)  # a dead process may have left it; bind needs a free name
        _at(path, listener.bind)
        os.chmod(path, files.file_mode)  # before anybody can connect
        listener.listen(_WAITING)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise named(error, path) from None
    return listener


def accept(listener: socket.socket) -> socket.socket:
    """Return a new connection, which never blocks. Raises BlockingIOError if nobody connects, OSError."""
    connection = with_descriptors(listener.accept)[0]
    close_in_children(connection)
    connection.setblocking(False)
    return connection


def connect(path: str, seconds: float) -> socket.socket:
    """Return a connection to the socket at a path; its calls wait at most `seconds`. Raises OSError:
    FileNotFoundError, ConnectionRefusedError if nobody listens, TimeoutError.
    """
    connection = _socket()
    try:
        connection.settimeout(seconds)
        _at(path, connection.connect)
    except OSError as error:
        connection.close()
        raise named(error, path) from None
    return connection


def _socket() -> socket.socket:
    made = with_descriptors(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    close_in_children(made)
    return made


def _at(path: str, call: Callable[[str], T]) -> T:
    """Return the result of `call` for the path, or, if the path is too long, for a shorter path to the same
    name.
    """
    if len(path.encode(*CODING)) <= _LONGEST:
        return call(path)
    directory, name = os.path.split(path)
    with Handle(directory, os.O_RDONLY | os.O_DIRECTORY) as handle:
        return call(f"/proc/self/fd/{handle.fd}/{name}")
