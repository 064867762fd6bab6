"""A handle: an open file or directory, whose path is put into errors of the system. Threads: any."""

from __future__ import annotations

import errno
import os

from segstore._native import descriptors, ffi, lib

Path = str | os.PathLike[str]


class Handle:
    """An open file or directory. The descriptor is closed with the last reference at the latest."""

    __slots__ = ("__weakref__", "_slot", "failed", "fd", "path")

    def __init__(self, path: Path, flags: int, mode: int = 0) -> None:
        """Open the file. Raises OSError as open(2)."""
        self.fd, self.path = -1, os.fspath(path)
        self.failed = ffi.NULL
        """An int32 that gets the errno of a sync that fails, even where an interrupt keeps that from being
        raised."""
        self._slot = descriptors()
        code = lib.seg_open(self._slot, os.fsencode(path), flags | os.O_CLOEXEC, mode)
        if code < 0:
            raise OSError(-code, os.strerror(-code), self.path)
        self.fd = self._slot[0]

    def fileno(self) -> int:
        """The descriptor, -1 once closed."""
        return self.fd

    @property
    def closed(self) -> bool:
        """Whether the descriptor is closed; False where an interrupt prevented `close` from closing it."""
        return bool(self._slot[0] < 0)

    def close(self) -> None:
        """Close the descriptor; further calls do nothing, or finish what an interrupt prevented. Raises
        OSError as close(2).
        """
        self.fd = -1
        code = lib.seg_close(self._slot)
        if code < 0:
            raise OSError(-code, os.strerror(-code), self.path)

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def named(error: OSError, path: str) -> OSError:
    """The same error, with the path, which an error of a call on a descriptor does not have."""
    number = error.errno or errno.EIO
    return OSError(number, os.strerror(number), path)
