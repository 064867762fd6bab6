"""An open regular file, and how the system's errors get its path. On disk: nothing. Threads: any."""

from __future__ import annotations

import errno
import os
from io import FileIO

Path = str | os.PathLike[str]


class Handle:
    """An open regular file. The descriptor is closed with the last reference at the latest."""

    __slots__ = ("__weakref__", "_owner", "fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self._owner: FileIO | None = None
        self.fd, self.path = fd, path

    def fileno(self) -> int:
        """The descriptor, -1 once closed."""
        return self.fd

    def close(self) -> None:
        """Close the descriptor; further calls do nothing. OSError as close(2)."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            if self._owner is None:
                os.close(fd)
            else:
                self._owner.close()

    def own(self) -> None:
        """Have an object of C close the descriptor where an interrupt ends `__del__`, which nobody repeats.

        Each step has one owner of the descriptor: where this is interrupted, the descriptor is closed.
        """
        fd, self.fd = self.fd, -1
        self._owner = FileIO(fd, "r+")
        self.fd = fd

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "fd"):  # else Ctrl-C came before there was any
            self.close()


def named(error: OSError, path: str) -> OSError:
    """The same error, with the path that a call on a descriptor does not tell."""
    number = error.errno or errno.EIO
    return OSError(number, os.strerror(number), path)
