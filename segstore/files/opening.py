"""Opens regular files, and nothing else that has a file's name; makes files and directories.

What is made has `file_mode`, or for directories that and the right to enter for whoever may read, whatever
the umask is. On disk: what it is asked to make. Threads: any.
"""

from __future__ import annotations

import errno
import os
import stat

from segstore.files.handle import Handle, Path
from segstore.files.stats import status, status_of

FILE_MODE = 0o600
"""Of new files, unless another one is asked for: nobody else reads them."""


class Opening:
    """`file_mode`: of what is made."""

    file_mode = FILE_MODE

    @property
    def directory_mode(self) -> int:
        return self.file_mode | (self.file_mode & 0o444) >> 2

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> Handle:
        """Open a regular file to read, or also to write, made (`file_mode`) where `create` and missing.

        OSError: ELOOP for a symbolic link, EINVAL for what is no regular file.
        """
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)
        # O_NONBLOCK: opening a FIFO must not wait for its other end; files take no notice of it.
        try:
            handle = Handle(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, self.file_mode)
        except PermissionError:
            # Of a device on a file system mounted "nodev", too.
            if stat.S_IFMT(status_of(path).mode) in (stat.S_IFBLK, stat.S_IFCHR):
                raise OSError(errno.EINVAL, "Not a regular file", os.fspath(path)) from None
            raise
        there = status(handle)
        if not stat.S_ISREG(there.mode):
            handle.close()
            raise OSError(errno.EINVAL, "Not a regular file", handle.path)
        if create and not there.size and _is_narrower(there.mode, self.file_mode):
            os.fchmod(handle.fd, self.file_mode)
        return handle

    def mkdir(self, path: Path) -> None:
        """Make a directory (`directory_mode`). OSError as mkdir(2)."""
        os.mkdir(path, self.directory_mode)
        made = status_of(path).mode
        if _is_narrower(made, self.directory_mode):
            os.chmod(path, stat.S_IMODE(made) | self.directory_mode)


def _is_narrower(mode: int, wanted: int) -> bool:
    """Whether the umask took something of it away. What was made by others with other rights stays so."""
    held = mode & 0o777
    return held != wanted and held | wanted == wanted
