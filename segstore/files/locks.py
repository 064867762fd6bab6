"""Lock files: locked as `segstore.files.locks` does it, and holding their holder's pid as text.

On disk: the file that is locked. Threads: any. Made of the other calls of `Files`, so that a fault can hit
each step.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import uuid
import weakref
from functools import cache
from typing import Protocol

from segstore.files.calls import Content, Opening, Stats
from segstore.files.handle import Handle, Path, named

# --- locks -------------------------------------------------------------------------------------

# Whole-file write locks (nothing on disk of its own): open file description locks of Linux.
#
# They exclude the POSIX lock that a Kafka broker takes through Java on the same file, and, unlike it,
# belong to the open file: closing another descriptor of the file in this process does not drop them.
#
# Threads: any. After a fork the child closes the descriptors it inherited, so that the lock ends with
# its holder.

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


# --- locks ------------------------------------------------------------

_TRIES = 100


class Locking(Opening, Content, Stats):
    """A lock ends with its handle, or with its process."""

    def lock(self, path: Path) -> Handle:
        """Lock a file (made where missing), which then holds our pid as text, until the handle is closed.

        BlockingIOError where anybody, a live Kafka broker too, holds a lock on it; EMLINK where the file has
        another name, under which it may be anything; other OSErrors as `open`.
        """
        for _ in range(_TRIES):
            handle = self.open(path, write=True, create=True)
            try:
                if self._take(handle, path):
                    return handle
            except OSError as e:
                handle.close()
                raise e if e.filename else named(e, handle.path) from None
            handle.close()
        raise OSError(errno.EAGAIN, "The lock file was removed again and again", os.fspath(path))

    def _take(self, handle: Handle, path: Path) -> bool:
        """Lock an open file: False where its name was removed meanwhile, since the lock would then exclude
        nobody who opens a file by that name.
        """
        try:
            if self.links(path) > 1:
                raise OSError(errno.EMLINK, "A lock file that has another name (a hard link)", handle.path)
            take(handle)
            if self.inode(path) != self.inode(handle):
                return False
        except FileNotFoundError:
            return False
        text = str(os.getpid()).encode()
        self.pwrite(handle, text, 0)
        self.truncate(handle, len(text))
        return True

    def lock_holder(self, path: Path) -> int | None:
        """The pid that has locked the file, 0 where it can't be told, None where nobody has. OSError."""
        try:
            handle = self.open(path)
        except FileNotFoundError:
            return None
        with handle:
            pid = holder(handle.fd)
            if pid is None or pid > 0:
                return pid
            text = self.pread(handle, 20, 0)
        return int(text) if text.isdigit() else 0

    def is_locked(self, path: Path) -> bool:
        """Whether anybody holds a lock on the file; False where it is missing. OSError as `open`."""
        return self.lock_holder(path) is not None


# --- machine -----------------------------------------------------------------------------------

# Which start of the machine this is. On disk: nothing; reads /proc. Threads: any.


@cache
def boot_id() -> str:
    """The kernel's name of this start. Empty where it can't be told. No clock is asked: it may have been set
    since.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""


@cache
def boot() -> int:
    """A number of 63 bits that this start has, and no other; 0 where it can't be told."""
    try:
        return uuid.UUID(boot_id()).int & (1 << 63) - 1
    except ValueError:
        return 0
