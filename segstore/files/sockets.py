"""Unix sockets that have a name in a directory: one process listens there, others connect.

On disk a socket, with the mode of new files. A name may be longer than the 108 bytes that the system takes:
then `/proc/self/fd` stands for the directory. No descriptor is left to a child process. Threads: functions
without state.

It is no part of `Files`: `socket` is imported only by those who share a store.
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

_LONGEST = 107  # bytes of a path, without the zero behind it
_WAITING = 128  # connections that nobody has accepted yet


def listen(files: Files, path: str) -> socket.socket:
    """Return a socket that listens at a path, in place of what had this name. It never blocks. Raises
    OSError.
    """
    listener = _socket()
    try:
        if files.exists(path):
            files.unlink(path)  # a dead process has left it: a name can be bound once
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
    """Return a connection with the socket at a path, whose calls wait for `seconds` at most. Raises OSError:
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
    """Return the result of `call` for a path, or for a short one that leads to the same name."""
    if len(path.encode(*CODING)) <= _LONGEST:
        return call(path)
    directory, name = os.path.split(path)
    with Handle(directory, os.O_RDONLY | os.O_DIRECTORY) as handle:
        return call(f"/proc/self/fd/{handle.fd}/{name}")
