"""Lock files: whole-file write locks that exclude Kafka brokers too; the file holds its holder's pid as text,
and behind a blank the address at which it serves Kafka's clients, where it does.

The locks are open file description locks of Linux. They exclude the POSIX lock that a Kafka broker takes
through Java on the same file, and, unlike that, belong to the open file: closing another descriptor of the
file in this process does not release them. After a fork the child closes the descriptors it inherited, so
that the lock ends with its holder. Threads: any. The calls are made of other calls of `Files`, so that a
fault can hit each step.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import uuid
from contextlib import suppress
from functools import cache
from typing import Protocol

from segstore.files.calls import FileContent, Opening
from segstore.files.forks import close_in_children
from segstore.files.handle import Handle, Path, named
from segstore.files.stats import Stats
from segstore.idle_files import with_descriptors
from segstore.threads import LiveSet

# --- locks -------------------------------------------------------------------------------------

_BOOT_ID = "/proc/sys/kernel/random/boot_id"

# struct flock on 64-bit Linux: l_type, l_whence, l_start, l_len (0: to the end, however it grows), l_pid.
_FLOCK = struct.Struct("hhqqi4x")


class _ClosableLock(Protocol):
    fd: int

    def close(self) -> None: ...


_held: LiveSet[_ClosableLock] = LiveSet()
"""Handles with a lock."""


def take(handle: _ClosableLock) -> None:
    """Lock the file of an open writable `handle`, without waiting.

    Raises BlockingIOError where anybody else has a lock on it.
    """
    _held.add(handle)
    close_in_children(handle)
    fcntl.fcntl(handle.fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))


def holder(fd: int) -> int | None:
    """Return the holder of a lock that keeps `fd` from being locked: a pid; -1 for a lock of an open file, as
    segstore's; None where nobody has one.
    """
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else int(pid)


def _is_of(handle: _ClosableLock, path: Path) -> bool:
    """Return whether the open file of a handle is the one at `path`."""
    with suppress(OSError):  # it may be closed meanwhile
        return os.path.samestat(os.fstat(handle.fd), os.stat(path))
    return False


# --- locks ------------------------------------------------------------

_TRIES = 100
_LONGEST_TEXT = 300
"""Bytes of a lock file that are read: a pid and an address."""


class Locking(Opening, FileContent, Stats):
    """Lock files. A lock ends with its handle, or with its process."""

    def lock(self, path: Path) -> Handle:
        """Lock a file (made where missing), which then holds this process's pid as text, until the handle is
        closed.

        Raises BlockingIOError where anybody, a live Kafka broker too, holds a lock on it; EMLINK where the
        file has another name, under which it may be anything; other OSErrors as `open`.
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
        """Lock an open file; False where its name was removed meanwhile, since the lock would then exclude
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

    def lock_byte(self, handle: Handle, at: int) -> None:
        """Lock one byte of an open writable file, also one that is not there, until the handle is closed.
        Raises BlockingIOError if anybody else has a lock on it, OSError.
        """
        close_in_children(handle)
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)
        try:
            fcntl.fcntl(handle.fd, fcntl.F_OFD_SETLK, wanted)
        except OSError as e:
            raise named(e, handle.path) from None

    def has_locked_byte(self, handle: Handle, first: int, count: int = 1) -> bool:
        """Return whether anybody has a lock on one of `count` bytes, but by this handle. Raises OSError."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, first, count, 0)
        try:
            answer = fcntl.fcntl(handle.fd, fcntl.F_OFD_GETLK, asked)
        except OSError as e:
            raise named(e, handle.path) from None
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def announce(self, handle: Handle, address: str) -> None:
        """Write into a lock file that this process holds where it can be reached, as a text in ASCII, or ""
        for nowhere. Raises OSError.
        """
        text = f"{os.getpid()} {address}".strip().encode()
        self.pwrite(handle, text, 0)
        self.truncate(handle, len(text))

    def lock_address(self, path: Path) -> str:
        """Return where the process that has locked the file can be reached, "" where that is not known.
        Raises OSError.
        """
        if self.lock_holder(path) is None:
            return ""
        with self.open(path) as handle:
            text = self.pread(handle, _LONGEST_TEXT, 0)
        return text.partition(b" ")[2].decode("ascii", "replace")

    def lock_holder(self, path: Path) -> int | None:
        """Return the pid that has locked the file, 0 where it is not known, None where nobody has a lock.
        Raises OSError.
        """
        try:
            handle = self.open(path)
        except FileNotFoundError:
            return None
        with handle:
            pid = holder(handle.fd)
            if pid is None or pid > 0:
                return pid
            text = self.pread(handle, 20, 0).partition(b" ")[0]
        return int(text) if text.isdigit() else 0

    def is_locked_here(self, path: Path) -> bool:
        """Return whether this process holds the lock of the file, as far as that can be told; False where it
        is missing.
        """
        return any(_is_of(handle, path) for handle in _held.all())

    def is_locked(self, path: Path) -> bool:
        """Return whether anybody holds a lock on the file; False where it is missing. Raises OSError as
        `open`.
        """
        return self.lock_holder(path) is not None


# --- machine -----------------------------------------------------------------------------------

# Which start of the machine this is, read from /proc.


@cache
def boot_id() -> str:
    """Return the kernel's id of this start, empty where it is not known. No clock is used, since that may
    have been set.
    """
    try:
        with with_descriptors(lambda: open(_BOOT_ID, encoding="ascii", errors="replace")) as file:
            return file.read(64).strip()
    except OSError:
        return ""


@cache
def boot() -> int:
    """Return a number of 63 bits that no other start has; 0 where it is not known."""
    try:
        return uuid.UUID(boot_id()).int & (1 << 63) - 1
    except ValueError:
        return 0
