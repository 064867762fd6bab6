"""What the system knows of a file or directory: kind, size, rights, names, times.

On disk: nothing but times of change (`set_modified`, `has_passed`). A symbolic link is asked for itself, not
followed. Threads: any.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any

from segstore._native import ffi, lib
from segstore.files.handle import Handle, Path
from segstore.sending.results import checked

_PATH_MAX = 4096  # bytes, with the zero at its end


def status(handle: Handle) -> Any:
    """What fstat(2) tells of an open file: a `seg_status`. OSError as fstat(2).

    `os.fstat` of CPython 3.10 raises SystemError where two signals come in it whose handlers raise.
    """
    found = ffi.new("seg_status *")
    checked(lib.seg_fstat(handle.fd, found), handle)
    return found


def status_of(path: Path, *, follow: bool = False) -> Any:
    """What lstat(2), or stat(2) where it is to `follow` a link, tells of a name. OSError as those.

    By C for the same reason as `status`.
    """
    found = ffi.new("seg_status *")
    code = lib.seg_stat(os.fsencode(path), follow, found)
    if code < 0:
        raise OSError(-code, os.strerror(-code), os.fspath(path))
    return found


class Stats:
    """Sizes in bytes, times in ns since the epoch."""

    def real_path(self, path: Path) -> str:
        """The absolute path without symbolic links, as realpath(3); of a name that nothing has, that of its
        directory, and the name. OSError (ELOOP, EACCES, ENOTDIR).

        By C for the same reason as `status`: `os.path.realpath` asks `os.lstat`.
        """
        out = ffi.new("char[]", _PATH_MAX)
        there, missing = os.fsdecode(path), ""
        if not os.path.isabs(there):
            there = os.path.join(os.getcwd(), there)
        while (code := lib.seg_realpath(os.fsencode(there), out)) == -errno.ENOENT:
            there, name = os.path.split(there)
            missing = os.path.join(name, missing)
        if code < 0:
            raise OSError(-code, os.strerror(-code), os.fspath(path))
        return os.path.normpath(os.path.join(os.fsdecode(ffi.string(out)), missing))

    def exists(self, path: Path) -> bool:
        """Whether anything has this name. OSError where that can't be told (EACCES)."""
        try:
            status_of(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_symlink(self, path: Path) -> bool:
        """Whether this is a symbolic link. OSError as lstat(2)."""
        return stat.S_ISLNK(status_of(path).mode)

    def is_directory(self, path: Path) -> bool:
        """Whether this is a directory, or a symbolic link to one. OSError as stat(2)."""
        return stat.S_ISDIR(status_of(path, follow=True).mode)

    def is_file(self, path: Path) -> bool:
        """Whether this is a regular file, and no link to one. OSError as lstat(2)."""
        return stat.S_ISREG(status_of(path).mode)

    def check_directory(self, path: Path) -> None:
        """Nothing, where this is a directory or is missing. OSError: ELOOP for a symbolic link (what
        is behind it is another's), ENOTDIR.
        """
        try:
            mode = status_of(path).mode
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(mode):
            number = errno.ELOOP if stat.S_ISLNK(mode) else errno.ENOTDIR
            what = "A symbolic link" if stat.S_ISLNK(mode) else "Something else"
            raise OSError(number, f"{what} in a directory's place", os.fspath(path))

    def mode(self, path: Path) -> int:
        """Who may do what with a file or directory, nine bits. OSError as lstat(2)."""
        return stat.S_IMODE(status_of(path).mode) & 0o777

    def size(self, file: Path | Handle) -> int:
        """Bytes of a file by path (of a symbolic link itself) or handle. OSError as stat(2)."""
        return int(status(file).size) if isinstance(file, Handle) else int(status_of(file).size)

    def inode(self, file: Path | Handle) -> int:
        """Which file this is, as long as it is there. OSError as stat(2)."""
        return int(status(file).inode) if isinstance(file, Handle) else int(status_of(file).inode)

    def identity(self, file: Path | Handle) -> tuple[int, ...]:
        """What tells a file that nobody writes any more from another one that has got its name: inode, size,
        time of change. OSError as stat(2).
        """
        found = status(file) if isinstance(file, Handle) else status_of(file)
        return found.inode, found.size, found.modified

    def links(self, path: Path) -> int:
        """How many names a file has (hard links): what is written to it, all of them see. OSError."""
        return int(status_of(path).links)

    def changed(self, handle: Handle) -> int:
        """When a file's bytes or names were last changed (its ctime, which nobody can set), ns. OSError."""
        return int(status(handle).changed)

    def modified(self, path: Path) -> int:
        """When a file or directory was last changed, ns since the epoch; 0 where there is none. OSError."""
        try:
            return int(status_of(path).modified)
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def set_modified(self, file: Path | Handle, ns: int) -> None:
        """Let a file by path (no link is followed) or handle seem to be last changed then, ns since the
        epoch. OSError as utimensat(2).
        """
        if isinstance(file, Handle):
            os.utime(file.fd, ns=(ns, ns))
        else:
            os.utime(file, ns=(ns, ns), follow_symlinks=False)

    def has_passed(self, handle: Handle, ns: int) -> bool:
        """Touch a file: whether what is changed from now on has a ctime above `ns`. OSError as
        utimensat(2).
        """
        os.utime(handle.fd)
        return bool(status(handle).changed > ns)
