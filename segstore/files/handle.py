"""A handle: an open file or directory, with its path for error messages. Threads: any."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

from segstore._native import ffi, lib
from segstore.idle_files import NONE_LEFT, close_some

Path = str | os.PathLike[str]
CODING = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
"""Arguments to encode a path: `os.fspath(path).encode(*CODING)` equals os.fsencode, but makes no Python-level
call.
"""


class User(Protocol):
    """An object that uses the descriptor of a `Handle`, without a reference to the handle."""

    def let_go(self) -> None:
        """Stop using the descriptor, or keep a reference to the handle as long as the use goes on."""


class Handle:
    """An open file or directory. Its descriptor is closed by `close`, or when the last reference to the
    handle is dropped.
    """

    __slots__ = ("__weakref__", "_slot", "failed", "fd", "path", "user")

    def __init__(self, path: Path, flags: int, mode: int = 0, found: Any = ffi.NULL) -> None:
        """Open the file. If `found`, a `seg_status *`, is given, the struct gets the result of fstat(2). If
        the process has no descriptor left, pools of open files close some of their files. Raises OSError,
        like open(2).
        """
        self.fd, self.path = -1, os.fspath(path)
        self.failed = ffi.NULL
        """A pointer to an int32 that gets the errno of a failed sync, even if an interrupt replaces the
        sync's exception.
        """
        self.user: Callable[[], User | None] | None = None
        """A weak reference to the `User` of the descriptor, or None."""
        # This is the function `descriptors`, inlined because each access to a file makes a handle.
        self._slot = ffi.gc(ffi.new("int32_t[2]", (-1, -1)), lib.seg_close)
        name = self.path.encode(*CODING)
        while (code := lib.seg_open(self._slot, name, flags | os.O_CLOEXEC, mode, found)) < 0:
            if -code not in NONE_LEFT or not close_some():
                raise failed(code, self.path)
        self.fd = self._slot[0]

    def let_go(self) -> None:
        """Make `user` stop using the descriptor. The descriptor is then closed when the last reference to
        this handle is dropped.
        """
        user = None if self.user is None else self.user()
        if user is not None:
            user.let_go()

    def fileno(self) -> int:
        """Return the descriptor, or -1 after it was closed."""
        return self.fd

    @property
    def closed(self) -> bool:
        """Return whether the descriptor is closed. If an interrupt has ended `close` too early, the
        descriptor is still open.
        """
        return bool(self._slot[0] < 0)

    def close(self, *_: object) -> None:
        """Close the descriptor. A second call does nothing, or finishes an interrupted close. The arguments
        of a `with` block are ignored. Raises OSError, like close(2).
        """
        self.fd = -1
        code = lib.seg_close(self._slot)
        if code < 0:
            raise failed(code, self.path)

    def __enter__(self) -> Handle:
        return self

    __exit__ = close


def failed(code: int, path: Path) -> OSError:
    """Return the OSError for `code`, a negative errno from C, with the path of the file."""
    return OSError(-code, os.strerror(-code), os.fspath(path))


def named(error: OSError, path: str) -> OSError:
    """Return an OSError with the same errno and the path, because errors of calls on descriptors have no
    path. An error without errno is returned as it is.
    """
    # An error without a number comes from a signal handler, not from the disk.
    number = error.errno
    return error if number is None else OSError(number, os.strerror(number), path)
