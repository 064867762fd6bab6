"""A handle: an open file or directory, whose path is put into errors of the system. Threads: any."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

from segstore._native import ffi, lib
from segstore.idle_files import NONE_LEFT, close_some

Path = str | os.PathLike[str]
CODING = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
"""How a path becomes bytes: `os.fspath(path).encode(*CODING)` is os.fsencode without a call of Python's."""


class User(Protocol):
    """Uses a descriptor without a reference to its `Handle`."""

    def let_go(self) -> None:
        """Use the descriptor no more, when this returns, or keep a reference to the handle for as long."""


class Handle:
    """An open file or directory. The descriptor is closed with the last reference at the latest."""

    __slots__ = ("__weakref__", "_slot", "failed", "fd", "path", "user")

    def __init__(self, path: Path, flags: int, mode: int = 0, found: Any = ffi.NULL) -> None:
        """Open the file; what fstat(2) tells of it is put into `found`, a `seg_status *`. Files of pools are
        closed if no descriptor is left. Raises OSError as open(2).
        """
        self.fd, self.path = -1, os.fspath(path)
        self.failed = ffi.NULL
        """An int32 that gets the errno of a sync that fails, even where an interrupt keeps that from being
        raised."""
        self.user: Callable[[], User | None] | None = None
        """A weak reference to what uses the descriptor without a reference to this object."""
        # As `descriptors`, in place: every look at a file makes a handle.
        self._slot = ffi.gc(ffi.new("int32_t[2]", (-1, -1)), lib.seg_close)
        name = self.path.encode(*CODING)
        while (code := lib.seg_open(self._slot, name, flags | os.O_CLOEXEC, mode, found)) < 0:
            if -code not in NONE_LEFT or not close_some():
                raise failed(code, self.path)
        self.fd = self._slot[0]

    def let_go(self) -> None:
        """Let the descriptor's `user` let go of it, so that the last reference to this object closes it."""
        user = None if self.user is None else self.user()
        if user is not None:
            user.let_go()

    def fileno(self) -> int:
        """Return the descriptor, -1 once closed."""
        return self.fd

    @property
    def closed(self) -> bool:
        """Return whether the descriptor is closed; False where an interrupt prevented `close` from closing
        it.
        """
        return bool(self._slot[0] < 0)

    def close(self, *_: object) -> None:
        """Close the descriptor; further calls do nothing, or finish what an interrupt prevented. Raises
        OSError as close(2). What a `with` block passes is not looked at.
        """
        self.fd = -1
        code = lib.seg_close(self._slot)
        if code < 0:
            raise failed(code, self.path)

    def __enter__(self) -> Handle:
        return self

    __exit__ = close


def failed(code: int, path: Path) -> OSError:
    """Return the error of a call of C that gave -errno, with the path of its file."""
    return OSError(-code, os.strerror(-code), os.fspath(path))


def named(error: OSError, path: str) -> OSError:
    """Return the same error, with the path, which an error of a call on a descriptor lacks. One without a
    number is a signal handler's: it stays as it is, for the disk has refused nothing.
    """
    number = error.errno
    return error if number is None else OSError(number, os.strerror(number), path)
