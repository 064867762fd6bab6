"""The calls of the kernel that change a file, as strace names them. Writes nothing."""

from __future__ import annotations

import os
from typing import NamedTuple

BY_FD = {
    "write": 0, "writev": 0, "pwrite64": 0, "pwritev": 0, "pwritev2": 0, "fsync": 0, "fdatasync": 0,
    "sync_file_range": 0, "ftruncate": 0, "fallocate": 0, "fchmod": 0, "fchown": 0, "fsetxattr": 0,
    "sendfile": 0, "copy_file_range": 2, "splice": 2, "mmap": 4,
}  # fmt: skip
"""Which of their arguments is the descriptor that is written to."""
BY_NAME = (
    "open", "openat", "openat2", "creat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "mkdir",
    "mkdirat", "rmdir", "truncate", "link", "linkat", "symlink", "symlinkat", "mknod", "mknodat", "chmod",
    "fchmodat", "chown", "lchown", "fchownat", "utimensat", "futimesat", "utimes", "setxattr", "lsetxattr",
)  # fmt: skip
NEVER = ("msync", "io_uring_setup", "io_submit", "syncfs", "sync")
"""These would tell no path."""
TRACED = ",".join(f"?{name}" for name in (*BY_FD, *BY_NAME, *NEVER))
ALIKE = {
    "openat": "open", "renameat": "rename", "renameat2": "rename", "unlinkat": "unlink", "mkdirat": "mkdir",
    "linkat": "link", "fchmodat": "chmod", "pwritev2": "pwritev",
}  # fmt: skip
"""Which of two a function of the C library calls is the machine's choice."""


class Change(NamedTuple):
    """A call of the kernel that changes something, by strace's name; of what, below PLACE."""

    call: str
    path: str


def plain(path: str | os.PathLike[str]) -> str:
    """As a descriptor's path, which is told to be deleted, and a name are written alike."""
    return os.fspath(path).removesuffix(" (deleted)").rstrip("/")
