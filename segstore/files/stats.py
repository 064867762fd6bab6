"""Attributes of a file or directory: kind, size, permissions, hard links, times.

Only modification times are written (`set_modified`, `has_passed`). A call on a symbolic link reads the link
itself. Errors carry the path. Threads: any.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any, NamedTuple

from segstore._native import ffi, lib
from segstore.files.handle import CODING, Handle, Path, failed

_PATH_MAX = 4096  # the most bytes of a path, including the terminating zero
_MISSING = frozenset({-errno.ENOENT, -errno.ENOTDIR})


def status(handle: Handle) -> Any:
    """Return the result of fstat(2) for an open file: a `seg_status`. Raises OSError, like fstat(2)."""
    # os.fstat is not used: in CPython 3.10 it raises SystemError if two signals arrive during the call and
    # their handlers raise.
    result = ffi.new("seg_status *")
    code = lib.seg_fstat(handle.fd, result)
    if code < 0:
        raise failed(code, handle.path)
    return result


def status_of(path: Path, *, follow: bool = False) -> Any:
    """Return the result of lstat(2) for a path, or of stat(2) if `follow`: a `seg_status`. Raises OSError,
    like these calls.
    """
    # os.stat is not used, because it may raise SystemError (see `status`).
    result = ffi.new("seg_status *")
    code = lib.seg_stat(os.fspath(path).encode(*CODING), follow, result)
    if code < 0:
        raise failed(code, path)
    return result


class Space(NamedTuple):
    """The space of a file system in bytes: its size, and the bytes that this user may still write."""

    total: int
    usable: int


class Stats:
    """Attributes of files: sizes in bytes, times in ns since the epoch.

    Methods that an open calls for many files call C directly, because `status_of` would cost a Python call
    more for each file.
    """

    def real_path(self, path: Path) -> str:
        """Return the absolute path without symbolic links, like realpath(3). If the file is missing, resolve
        its directory, and append its name. Raises OSError (ELOOP, EACCES, ENOTDIR).
        """
        # os.path.realpath is not used: it calls os.lstat, which may raise SystemError (see `status`).
        out = ffi.new("char[]", _PATH_MAX)
        existing, missing = os.fsdecode(path), ""
        if not existing.startswith("/"):
            existing = os.path.join(os.getcwd(), existing)
        while (code := lib.seg_realpath(existing.encode(*CODING), out)) == -errno.ENOENT:
            existing, name = os.path.split(existing)
            missing = os.path.join(name, missing)
        if code < 0:
            raise failed(code, path)
        result: str = ffi.string(out).decode(*CODING)
        return os.path.normpath(os.path.join(result, missing)) if missing else result

    def exists(self, path: Path) -> bool:
        """Return whether there is a file of any kind at the path. Raises OSError if that can't be found out
        (EACCES).
        """
        code = lib.seg_stat(os.fspath(path).encode(*CODING), False, ffi.new("seg_status *"))
        if code < 0 and code not in _MISSING:
            raise failed(code, path)
        return bool(code == 0)

    def is_symlink(self, path: Path) -> bool:
        """Return whether the path is a symbolic link. Raises OSError, like lstat(2)."""
        result = ffi.new("seg_status *")
        code = lib.seg_stat(os.fspath(path).encode(*CODING), False, result)
        if code < 0:
            raise failed(code, path)
        return stat.S_ISLNK(result.mode)

    def is_directory(self, path: Path) -> bool:
        """Return whether the path is a directory, or a symbolic link to a directory. Raises OSError, like
        stat(2).
        """
        return stat.S_ISDIR(status_of(path, follow=True).mode)

    def is_file(self, path: Path) -> bool:
        """Return whether the path is a regular file, and not a symbolic link. Raises OSError, like
        lstat(2).
        """
        return stat.S_ISREG(status_of(path).mode)

    def check_directory(self, path: Path) -> bool:
        """Return True if the path is a directory, False if it is missing. Raises OSError: ELOOP for a
        symbolic link, because its target may belong to somebody else; ENOTDIR for any other file.
        """
        result = ffi.new("seg_status *")
        code = lib.seg_stat(os.fspath(path).encode(*CODING), False, result)
        if code == -errno.ENOENT:
            return False
        if code < 0:
            raise failed(code, path)
        if not stat.S_ISDIR(result.mode):
            number = errno.ELOOP if stat.S_ISLNK(result.mode) else errno.ENOTDIR
            what = "A symbolic link" if stat.S_ISLNK(result.mode) else "Something else"
            raise OSError(number, f"{what} in a directory's place", os.fspath(path))
        return True

    def mode(self, path: Path) -> int:
        """Return the nine permission bits of a file or directory. Raises OSError, like lstat(2)."""
        return stat.S_IMODE(status_of(path).mode) & 0o777

    def size(self, file: Path | Handle) -> int:
        """Return the size in bytes of a file, given by path or handle; of a symbolic link, its own size.
        Raises OSError, like stat(2).
        """
        result = ffi.new("seg_status *")
        if isinstance(file, Handle):
            code = lib.seg_fstat(file.fd, result)
        else:
            code = lib.seg_stat(os.fspath(file).encode(*CODING), False, result)
        if code < 0:
            raise failed(code, file.path if isinstance(file, Handle) else file)
        return int(result.size)

    def space(self, path: Path) -> Space:
        """Return the space of the file system of a file or directory. Raises OSError, like statvfs(3)."""
        result = os.statvfs(path)
        return Space(result.f_blocks * result.f_frsize, result.f_bavail * result.f_frsize)

    def file_system(self, path: Path) -> int:
        """Return the type of the file system of a file or directory, as the magic number of statfs(2). Raises
        OSError (ENOSYS on systems other than Linux).
        """
        code = lib.seg_file_system(os.fspath(path).encode(*CODING))
        if code < 0:
            raise failed(code, path)
        return int(code)

    def inode(self, file: Path | Handle) -> int:
        """Return the inode number, which identifies a file while it exists. Raises OSError, like stat(2)."""
        return int(status(file).inode) if isinstance(file, Handle) else int(status_of(file).inode)

    def identity(self, file: Path | Handle) -> tuple[int, ...]:
        """Return (inode, size, modification time). If a file that is no longer written is replaced, each
        later file at its path differs in at least one of these numbers. Raises OSError, like stat(2).
        """
        result = status(file) if isinstance(file, Handle) else status_of(file)
        return result.inode, result.size, result.modified

    def which(self, path: Path, *, or_change: bool = True) -> tuple[int, int, int]:
        """Return (device, inode, time of birth) of a file; a copy of the file has other numbers. If the time
        of birth is unknown, the third number is the time of the last change, or 0 if `or_change` is False.
        Raises OSError, like lstat(2).
        """
        result = ffi.new("int64_t[3]")
        code = lib.seg_which(os.fspath(path).encode(*CODING), or_change, result)
        if code < 0:
            raise failed(code, path)
        return result[0], result[1], result[2]

    def links(self, path: Path) -> int:
        """Return the number of hard links of a file. A write to the file is seen through all of its links.
        Raises OSError.
        """
        result = ffi.new("seg_status *")
        code = lib.seg_stat(os.fspath(path).encode(*CODING), False, result)
        if code < 0:
            raise failed(code, path)
        return int(result.links)

    def allocation(self, path: Path) -> tuple[int, int, int]:
        """Return (size, bytes of allocated blocks, number of hard links) of a file. A file that is not
        regular counts as having no blocks. Raises OSError, like lstat(2).
        """
        result = ffi.new("seg_status *")
        code = lib.seg_stat(os.fspath(path).encode(*CODING), False, result)
        if code < 0:
            raise failed(code, path)
        return result.size, result.allocated if stat.S_ISREG(result.mode) else 0, result.links

    def changed(self, handle: Handle) -> int:
        """Return the ctime of a file in ns: the time of the last change of its bytes or links. No program can
        set this time. Raises OSError.
        """
        return int(status(handle).changed)

    def modified(self, path: Path) -> int:
        """Return the modification time of a file or directory in ns since the epoch, or 0 if it is missing.
        Raises OSError.
        """
        try:
            return int(status_of(path).modified)
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def set_modified(self, file: Path | Handle, ns: int) -> None:
        """Set the modification time (ns since the epoch) of a file, given by path or handle. No link is
        followed. Raises OSError, like utimensat(2).
        """
        if isinstance(file, Handle):
            os.utime(file.fd, ns=(ns, ns))
        else:
            os.utime(file, ns=(ns, ns), follow_symlinks=False)

    def has_passed(self, handle: Handle, ns: int) -> bool:
        """Set the modification time of a file to now. Return whether a change from now on gets a ctime above
        `ns`. Raises OSError, like utimensat(2).
        """
        os.utime(handle.fd)
        return bool(status(handle).changed > ns)
