"""What the system knows of a file or directory: kind, size, rights, names, times.

On disk: nothing but times of change (`set_modified`, `has_passed`). A symbolic link is asked for itself, not
followed. Threads: any.
"""

from __future__ import annotations

import errno
import os
import stat

from segstore.files.handle import Handle, Path


class Stats:
    """Sizes in bytes, times in ns since the epoch."""

    def exists(self, path: Path) -> bool:
        """Whether anything has this name. OSError where that can't be told (EACCES)."""
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_symlink(self, path: Path) -> bool:
        """Whether this is a symbolic link. OSError as lstat(2)."""
        return stat.S_ISLNK(os.lstat(path).st_mode)

    def is_directory(self, path: Path) -> bool:
        """Whether this is a directory, or a symbolic link to one. OSError as stat(2)."""
        return stat.S_ISDIR(os.stat(path).st_mode)

    def is_file(self, path: Path) -> bool:
        """Whether this is a regular file, and no link to one. OSError as lstat(2)."""
        return stat.S_ISREG(os.lstat(path).st_mode)

    def check_directory(self, path: Path) -> None:
        """Nothing, where this is a directory or is missing. OSError: ELOOP for a symbolic link (what
        is behind it is another's), ENOTDIR.
        """
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(mode):
            number = errno.ELOOP if stat.S_ISLNK(mode) else errno.ENOTDIR
            what = "A symbolic link" if stat.S_ISLNK(mode) else "Something else"
            raise OSError(number, f"{what} in a directory's place", os.fspath(path))

    def mode(self, path: Path) -> int:
        """Who may do what with a file or directory, nine bits. OSError as lstat(2)."""
        return stat.S_IMODE(os.lstat(path).st_mode) & 0o777

    def size(self, file: Path | Handle) -> int:
        """Bytes of a file by path (of a symbolic link itself) or handle. OSError as stat(2)."""
        return (os.fstat(file.fd) if isinstance(file, Handle) else os.lstat(file)).st_size

    def inode(self, file: Path | Handle) -> int:
        """Which file this is, as long as it is there. OSError as stat(2)."""
        return (os.fstat(file.fd) if isinstance(file, Handle) else os.lstat(file)).st_ino

    def identity(self, file: Path | Handle) -> tuple[int, ...]:
        """What tells a file that nobody writes any more from another one that has got its name: inode, size,
        time of change. OSError as stat(2).
        """
        stat_ = os.fstat(file.fd) if isinstance(file, Handle) else os.lstat(file)
        return stat_.st_ino, stat_.st_size, stat_.st_mtime_ns

    def links(self, path: Path) -> int:
        """How many names a file has (hard links): what is written to it, all of them see. OSError."""
        return os.lstat(path).st_nlink

    def changed(self, handle: Handle) -> int:
        """When a file's bytes or names were last changed (its ctime, which nobody can set), ns. OSError."""
        return os.fstat(handle.fd).st_ctime_ns

    def modified(self, path: Path) -> int:
        """When a file or directory was last changed, ns since the epoch; 0 where there is none. OSError."""
        try:
            return os.lstat(path).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def set_modified(self, handle: Handle, ns: int) -> None:
        """Let a file seem to be last changed then, ns since the epoch. OSError as utimensat(2)."""
        os.utime(handle.fd, ns=(ns, ns))

    def has_passed(self, handle: Handle, ns: int) -> bool:
        """Touch a file: whether what is changed from now on has a ctime above `ns`. OSError as
        utimensat(2).
        """
        os.utime(handle.fd)
        return os.fstat(handle.fd).st_ctime_ns > ns
