"""Lock files: write locks on whole files. The locks exclude Kafka brokers, too. The file has the pid of the
lock's holder as text. If the holder serves Kafka's clients, a blank and the holder's address follow.

The locks are open file description locks of Linux. They exclude the POSIX lock that a Kafka broker takes
through Java on the same file. Unlike a POSIX lock, an open file description lock belongs to the open file, so
that closing another descriptor of the file in this process does not release the lock. After a fork the child
closes the inherited descriptors, so that a lock is released when its holder dies. Threads: any. Each step is
a call of `Files`, so that a test can inject a fault into it.
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

# struct flock on 64-bit Linux: l_type, l_whence, l_start, l_len (0: to the end of the file, even if it
# grows), l_pid.
_FLOCK = struct.Struct("hhqqi4x")


class _ClosableLock(Protocol):
    fd: int

    def close(self) -> None: ...


_held: LiveSet[_ClosableLock] = LiveSet()
"""Handles whose file is locked."""


def take(handle: _ClosableLock) -> None:
    """Lock the file of an open writable `handle`, without waiting.

    Raises BlockingIOError if another open file or process has a lock on the file.
    """
    _held.add(handle)
    close_in_children(handle)
    fcntl.fcntl(handle.fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))


def holder(fd: int) -> int | None:
    """Return the pid of the process whose lock prevents a lock on `fd`. Return -1 if that lock is an open
    file description lock, like segstore's own locks. Return None if there is no lock.
    """
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, query))
    return None if kind == fcntl.F_UNLCK else int(pid)


def _is_of(handle: _ClosableLock, path: Path) -> bool:
    """Return whether the open file of a handle is the file at `path`."""
    with suppress(OSError):  # another thread may have closed the handle
        return os.path.samestat(os.fstat(handle.fd), os.stat(path))
    return False


# --- locks ------------------------------------------------------------

_TRIES = 100
_LONGEST_TEXT = 300
"""At most this many bytes of a lock file are read: a pid and an address."""


class Locking(Opening, FileContent, Stats):
    """Lock files. A lock is released when its handle is closed, or when the process with the handle dies."""

    def lock(self, path: Path) -> Handle:
        """Lock a file until the returned handle is closed. A missing file is created. While the file is
        locked, its content is this process's pid as text.

        Raises the errors of `open`. Raises BlockingIOError if another open file or process holds a lock on
        the file, for example a live Kafka broker. Raises OSError (EMLINK) if the file has another hard link,
        because other programs may use the file by that link.
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
        """Lock an open file, and return True. Return False if the file at `path` was removed before the lock
        was taken.
        """
        try:
            if self.links(path) > 1:
                raise OSError(errno.EMLINK, "A lock file that has another name (a hard link)", handle.path)
            take(handle)
            # A lock on a removed file would not exclude a process that then creates a new file at the path.
            if self.inode(path) != self.inode(handle):
                return False
        except FileNotFoundError:
            return False
        text = str(os.getpid()).encode()
        self.pwrite(handle, text, 0)
        self.truncate(handle, len(text))
        return True

    def lock_byte(self, handle: Handle, at: int) -> None:
        """Lock the byte at position `at` of an open writable file, until the handle is closed. The position
        may lie after the file's end. Raises OSError, and BlockingIOError if another open file or process has
        a lock on the byte.
        """
        close_in_children(handle)
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)
        try:
            fcntl.fcntl(handle.fd, fcntl.F_OFD_SETLK, wanted)
        except OSError as e:
            raise named(e, handle.path) from None

    def has_locked_byte(self, handle: Handle, first: int, count: int = 1) -> bool:
        """Return whether any byte of `count` bytes from `first` on is locked, except by this handle. Raises
        OSError.
        """
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, first, count, 0)
        try:
            answer = fcntl.fcntl(handle.fd, fcntl.F_OFD_GETLK, query)
        except OSError as e:
            raise named(e, handle.path) from None
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def announce(self, handle: Handle, address: str) -> None:
        """Write the address of this process, in ASCII, into a file that this process has locked; "" means
        that the process has no address. Raises OSError.
        """
        text = f"{os.getpid()} {address}".strip().encode()
        self.pwrite(handle, text, 0)
        self.truncate(handle, len(text))

    def lock_address(self, path: Path) -> str:
        """Return the address of the process that has locked the file, or "" if there is no address. Raises
        OSError.
        """
        if self.lock_holder(path) is None:
            return ""
        with self.open(path) as handle:
            text = self.pread(handle, _LONGEST_TEXT, 0)
        return text.partition(b" ")[2].decode("ascii", "replace")

    def lock_holder(self, path: Path) -> int | None:
        """Return the pid of the process that has locked the file, 0 if the pid is unknown, None if the file
        is not locked. Raises OSError.
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
        """Return whether a handle of this process has locked the file. Return False if the file is
        missing.
        """
        return any(_is_of(handle, path) for handle in _held.all())

    def is_locked(self, path: Path) -> bool:
        """Return whether any process has locked the file. Return False if the file is missing. Raises the
        errors of `open`.
        """
        return self.lock_holder(path) is not None


# --- machine -----------------------------------------------------------------------------------

# The id of this start of the machine, from /proc.


@cache
def boot_id() -> str:
    """Return the kernel's id of this start of the machine, or "" if it can't be read. A time would not serve,
    because the clock may be set.
    """
    try:
        with with_descriptors(lambda: open(_BOOT_ID, encoding="ascii", errors="replace")) as file:
            return file.read(64).strip()
    except OSError:
        return ""


@cache
def boot() -> int:
    """Return a number of 63 bits that is unique to this start of the machine, or 0 if it can't be read."""
    try:
        return uuid.UUID(boot_id()).int & (1 << 63) - 1
    except ValueError:
        return 0
