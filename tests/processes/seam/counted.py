"""`Files` that count their system calls. On disk: as `Files`. Threads: any."""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults import MUTATING

from segstore.files import Files, Handle

from .changes import Change, plain

UMASK = 0o077
"""That the traced process has: modes are put right then."""
BLOCK = 4096
"""Copies between multiples of this share blocks of the file system; C writes the others from a mapping."""


class CountedChanges(Files):
    """`changes` begun, failed ones too; `called`, which methods made them. Paths as descriptors have them."""

    def __init__(self, place: Path) -> None:
        self.changes: Counter[Change] = Counter()
        self.called: set[str] = set()
        self._place, self._guard = f"{place}/", threading.Lock()

    def count(self, call: str, file: str | os.PathLike[str] | Handle, n: int = 1) -> None:
        """Calls on a file; nothing where it is not below the place."""
        path = os.readlink(f"/proc/self/fd/{file.fd}") if isinstance(file, Handle) else os.fspath(file)
        if n and path.startswith(self._place):
            with self._guard:
                self.changes[Change(call, plain(path[len(self._place) :]))] += n

    def open(self, path: Any, *, write: bool = False, create: bool = False) -> Handle:
        self.count("open", path, write or create)
        self.count("fchmod", path, create and self._narrowed() and not os.path.lexists(path))
        return super().open(path, write=write, create=create)

    def _narrowed(self) -> bool:
        """Whether the umask takes rights of what is made, which are given to it then."""
        return bool(self.file_mode & UMASK)

    def pwrite(self, handle: Handle, data: Any, position: int) -> int:
        self.count("pwrite64", handle, len(data) > 0)
        return super().pwrite(handle, data, position)

    def mkdir(self, path: Any) -> None:
        self.count("mkdir", path)
        super().mkdir(path)
        self.count("chmod", path, self._narrowed())

    def map(self, handle: Handle, length: int, *, write: bool = False) -> mmap.mmap:
        self.count("mmap", handle, write)
        return super().map(handle, length, write=write)

    def copy_range(self, source: Handle, position: int, target: Handle, at: int, count: int) -> int:
        shared = position % BLOCK == at % BLOCK == 0
        self.count("copy_file_range" if shared else "pwrite64", target, count > 0)
        return super().copy_range(source, position, target, at, count)

    def restamp(self, handle: Handle, end: int, base_offset: int, leader_epoch: int) -> int:
        at = 0
        while at < end:
            self.count("pwrite64", handle)
            at += 12 + int(struct.unpack(">i", os.pread(handle.fd, 4, at + 8))[0])
        return super().restamp(handle, end, base_offset, leader_epoch)


ONE_CALL = {
    "pwritev": "pwritev", "truncate": "ftruncate", "allocate": "fallocate", "sync": "fdatasync",
    "start_sync": "sync_file_range", "sync_dir": "fsync", "rename": "rename", "link": "link",
    "unlink": "unlink", "rmdir": "rmdir", "set_modified": "utimensat",
    "has_passed": "utimensat",
}  # fmt: skip
"""Methods that make one call, on their first argument."""


def _one_call(name: str, call: str) -> Callable[..., Any]:
    original = getattr(Files, name)

    def counted(self: CountedChanges, file: Any, *rest: Any, **options: Any) -> Any:
        self.count(call, file)
        return original(self, file, *rest, **options)

    return counted


def _noted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def noted(self: CountedChanges, *rest: Any, **options: Any) -> Any:
        self.called.add(name)
        return original(self, *rest, **options)

    return noted


for _name, _call in ONE_CALL.items():
    setattr(CountedChanges, _name, _one_call(_name, _call))
CHANGING = {*MUTATING, "open", "map", "set_modified", "has_passed", "start_sync", "lock"}
CHANGING |= {"write_atomic", "write_together"}
"""All methods that change something."""
for _name in CHANGING:
    setattr(CountedChanges, _name, _noted(_name, getattr(CountedChanges, _name)))
