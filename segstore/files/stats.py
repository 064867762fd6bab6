"""Attributes of a file or directory: kind, size, permissions, names, times.

On disk only modification times are written (`set_modified`, `has_passed`). Calls on a symbolic link concern
the link itself. Errors carry the path. Threads: any.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any, NamedTuple

from segstore._native import ffi, lib
from segstore.files.handle import CODING, Handle, Path, failed

_PATH_MAX = 4096  # bytes, with the zero at its end
_MISSING = frozenset({-errno.ENOENT, -errno.ENOTDIR})


def status(handle: Handle) -> Any:
    """Return the result of fstat(2) for an open file: a `seg_status`. Raises OSError as fstat(2)."""
    # This is not os.fstat, which in CPython 3.10 raises SystemError if two signals arrive in it whose
    # handlers raise.
    result = ffi.new("seg_status *")
    code = lib.seg_fstat(handle.fd, result)
    if code < 0:
        raise failed(code, handle.path)
    return result


def status_of(path: Path, *, follow: bool = False) -> Any:
    """Return the result of lstat(2), or of stat(2) with `follow`, for a path. Raises OSError as lstat(2) and
    stat(2).
    """
    # This is not os.stat, which may raise SystemError (see `status`).
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

    Methods that an open calls for many files call C directly, because `status_of` would cost one more Python
    call each time.
    """

    def real_path(self, path: Path) -> str:
        """Return the absolute path without symbolic links, as realpath(3). For a missing name, return the
        real path of its directory with the name. Raises OSError (ELOOP, EACCES, ENOTDIR).
        """
        # This is not os.path.realpath, because that calls os.lstat, which may raise SystemError (see
        # `status`).
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
        """Return whether anything has this name. Raises OSError if that is unknown (EACCES)."""
        code = lib.seg_stat(os.fspath(path).encode(*CODING), False, ffi.new("seg_status *"))
        if code < 0 and code not in _MISSING:
            raise failed(code, path)
        return bool(code == 0)

    def is_symlink(self, path: Path) -> bool:
        """Return whether this is a symbolic link. Raises OSError as lstat(2)."""
        result = ffi.new("seg_status *")
        code = lib.seg_stat(os.fspath(path).encode(*CODING), False, result)
        if code < 0:
            raise failed(code, path)
        return stat.S_ISLNK(result.mode)

    def is_directory(self, path: Path) -> bool:
        """Return whether this is a directory, or a symbolic link to one. Raises OSError as stat(2)."""
        return stat.S_ISDIR(status_of(path, follow=True).mode)

    def is_file(self, path: Path) -> bool:
        """Return whether this is a regular file, not a link to one. Raises OSError as lstat(2)."""
        return stat.S_ISREG(status_of(path).mode)

    def check_directory(self, path: Path) -> bool:
        """Return whether there is a directory at the path. Raises OSError: ELOOP for a symbolic link (its
        target belongs to somebody else), ENOTDIR for any other file.
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
        """Return the permission bits of a file or directory, nine bits. Raises OSError as lstat(2)."""
        return stat.S_IMODE(status_of(path).mode) & 0o777

    def size(self, file: Path | Handle) -> int:
        """Return the size of a file in bytes, by path (of a symbolic link itself) or handle. Raises OSError
        as stat(2).
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
        """Return the space of the file system that a file or directory lies in. Raises OSError as
        statvfs(3).
        """
        result = os.statvfs(path)
        return Space(result.f_blocks * result.f_frsize, result.f_bavail * result.f_frsize)

    def file_system(self, path: Path) -> int:
        """Return the type of the file system that a file or directory lies in, as the magic number of
        statfs(2). Raises OSError; ENOSYS on systems other than Linux.
        """
        code = lib.seg_file_system(os.fspath(path).encode(*CODING))
        if code < 0:
            raise failed(code, path)
        return int(code)

    def inode(self, file: Path | Handle) -> int:
        """Return the inode number, which identifies a file while it exists. Raises OSError as stat(2)."""
        return int(status(file).inode) if isinstance(file, Handle) else int(status_of(file).inode)

    def identity(self, file: Path | Handle) -> tuple[int, ...]:
        """Return (inode, size, modification time), by which a finished file differs from a later file of its
        name. Raises OSError as stat(2).
        """
        result = status(file) if isinstance(file, Handle) else status_of(file)
        return result.inode, result.size, result.modified

    def which(self, path: Path, *, or_change: bool = True) -> tuple[int, int, int]:
        """Return (device, inode, time of birth) of a file, which differ in every copy. If the time of birth
        is unknown, the third number is the time of the last change, or 0 if `or_change` is False. Raises
        OSError as lstat(2).
        """
        result = ffi.new("int64_t[3]")
        code = lib.seg_which(os.fspath(path).encode(*CODING), or_change, result)
        if code < 0:
            raise failed(code, path)
        return result[0], result[1], result[2]

    def links(self, path: Path) -> int:
        """Return the number of names (hard links) of a file. A write shows under all its names. Raises
        OSError.
        """
        result = ffi.new("seg_status *")
        code = lib.seg_stat(os.fspath(path).encode(*CODING), False, result)
        if code < 0:
            raise failed(code, path)
        return int(result.links)

    def allocation(self, path: Path) -> tuple[int, int, int]:
        """Return the size of a file, the bytes of its blocks, and its number of names. A file that is not
        regular counts as having no blocks. Raises OSError as lstat(2).
        """
        result = ffi.new("seg_status *")
        code = lib.seg_stat(os.fspath(path).encode(*CODING), False, result)
        if code < 0:
            raise failed(code, path)
        return result.size, result.allocated if stat.S_ISREG(result.mode) else 0, result.links

    def changed(self, handle: Handle) -> int:
        """Return the ctime of a file in ns: the last change of its bytes or names, which nobody can set.
        Raises OSError.
        """
        return int(status(handle).changed)

    def modified(self, path: Path) -> int:
        """Return the modification time of a file or directory, ns since the epoch; 0 if it is missing. Raises
        OSError.
        """
        try:
            return int(status_of(path).modified)
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def set_modified(self, file: Path | Handle, ns: int) -> None:
        """Set the modification time of a file by path (no link is followed) or handle, ns since the epoch.
        Raises OSError as utimensat(2).
        """
        if isinstance(file, Handle):
            os.utime(file.fd, ns=(ns, ns))
        else:
            os.utime(file, ns=(ns, ns), follow_symlinks=False)

    def has_passed(self, handle: Handle, ns: int) -> bool:
        """Touch a file; return whether a change from now on gets a ctime above `ns`. Raises OSError as
        utimensat(2).
        """
        os.utime(handle.fd)
        return bool(status(handle).changed > ns)
