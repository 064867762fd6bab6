"""Whole-file write locks (nothing on disk of its own): open file description locks of Linux.

They exclude the POSIX lock that a Kafka broker takes through Java on the same file, and, unlike it,
belong to the open file: closing another descriptor of the file in this process does not drop them.

Threads: any. After a fork the child closes the descriptors it inherited, so that the lock ends with
its holder.
"""

from __future__ import annotations

import fcntl
import os
import struct
import weakref
from typing import Protocol

# struct flock on 64-bit Linux: l_type, l_whence, l_start, l_len (0: to the end, however it grows), l_pid.
_FLOCK = struct.Struct("hhqqi4x")


class _Closable(Protocol):
    fd: int

    def close(self) -> None: ...


_held: set[weakref.ref[_Closable]] = set()
"""Copied in one step of C, so that whatever opens a file meanwhile does no harm."""


def take(handle: _Closable) -> None:
    """Lock the file of an open writable `handle`, without waiting.

    BlockingIOError where anybody else has a lock on it.
    """
    _held.add(weakref.ref(handle, _held.discard))
    fcntl.fcntl(handle.fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))


def holder(fd: int) -> int | None:
    """Who would keep `fd` from being locked: a pid; -1, a lock of an open file, as ours; None, nobody."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else int(pid)


def _close_inherited() -> None:
    for ref in _held.copy():
        handle = ref()
        if handle is not None:
            handle.close()


os.register_at_fork(after_in_child=_close_inherited)
