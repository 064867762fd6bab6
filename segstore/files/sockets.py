"""Unix sockets with a path: one process listens, others connect.

The socket on disk has the mode of new files. If a path is longer than the 108 bytes that the system allows,
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

_LONGEST = 107  # a path may have this many bytes, without the terminating zero
_WAITING = 128  # this many connections may wait until they are accepted


def listen(files: Files, path: str) -> socket.socket:
    """Return a socket that listens at a path. A file at the path is replaced. The socket's calls never block.
    Raises OSError.
    """
    listener = _socket()
    try:
        if files.exists(path):
            files.unlink(path)  # a dead process has left the file; bind needs a free path
        _at(path, listener.bind)
        os.chmod(path, files.file_mode)  # the mode is set before anybody can connect
        listener.listen(_WAITING)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise named(error, path) from None
    return listener


def accept(listener: socket.socket) -> socket.socket:
    """Return a new connection, whose calls never block. Raises OSError, and BlockingIOError if no connection
    waits.
    """
    connection = with_descriptors(listener.accept)[0]
    close_in_children(connection)
    connection.setblocking(False)
    return connection


def connect(path: str, seconds: float) -> socket.socket:
    """Return a connection to the socket at a path. The connection's calls wait at most `seconds`. Raises
    OSError: FileNotFoundError, TimeoutError, and ConnectionRefusedError if no process listens.
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
    """Return `call(path)`, or, if the path is too long, the result of `call` for a shorter path to the same
    file.
    """
    if len(path.encode(*CODING)) <= _LONGEST:
        return call(path)
    directory, name = os.path.split(path)
    with Handle(directory, os.O_RDONLY | os.O_DIRECTORY) as handle:
        return call(f"/proc/self/fd/{handle.fd}/{name}")
