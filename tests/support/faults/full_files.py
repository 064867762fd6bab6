"""`FullFiles`: a file system that is full, counted in blocks, on a machine whose own disk has room.

Files that grow, and names that are made, take blocks; files that shrink or go give them back. Calls above
what is free get ENOSPC, or the error that is asked for. Threads: any; one lock.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from typing import Any

from faults import HookedFiles

from segstore.files import Handle
from segstore.files.stats import Space

BLOCK = 4096
MUCH = 1 << 30


class FullFiles(HookedFiles):
    """Files of which `free` blocks are left. With `greedy`, others take each third block that becomes free.
    With `renames`, a new name needs a free block. `refused` lists the calls that found no
    room.
    """

    def __init__(self, error: int = errno.ENOSPC, *, greedy: bool = False, renames: bool = False) -> None:
        self.free, self.error, self.greedy, self.renames = MUCH, error, greedy, renames
        self.refused: list[tuple[str, str]] = []
        self._guard = threading.RLock()
        self._turn = 0

    def fill(self) -> None:
        """Leave no free block."""
        self.free = 0

    def make_room(self) -> None:
        """Let the disk have room again."""
        self.free = MUCH

    def space(self, path: Any) -> Space:
        return Space(MUCH * BLOCK, self.free * BLOCK)

    def _need(self, call: str, path: Any, blocks: int) -> None:
        if blocks > self.free:
            self.refused.append((call, os.path.basename(os.fspath(path))))
            raise OSError(self.error, os.strerror(self.error), os.fspath(path))

    def _use_blocks(self, call: str, path: Any, blocks: int) -> None:
        self._need(call, path, blocks)
        self.free -= blocks

    def _free_blocks(self, blocks: int) -> None:
        for _ in range(blocks):
            self._turn += 1
            self.free += not (self.greedy and self._turn % 3 == 0)

    def _grow_to(self, call: str, handle: Handle, end: int) -> None:
        size = os.fstat(handle.fd).st_size
        self._use_blocks(call, handle.path, max(_blocks(end) - _blocks(size), 0))

    def open(self, path: Any, *, write: bool = False, create: bool = False) -> Handle:
        with self._guard:
            if create and not os.path.lexists(path):
                self._need("open", path, 1)
            return super().open(path, write=write, create=create)

    def mkdir(self, path: Any) -> None:
        with self._guard:
            self._use_blocks("mkdir", path, 1)
            super().mkdir(path)

    def pwrite(self, handle: Handle, data: Any, position: int) -> int:
        with self._guard:
            self._grow_to("pwrite", handle, position + memoryview(data).nbytes)
            return super().pwrite(handle, data, position)

    def pwritev(self, handle: Handle, buffers: Sequence[Any], position: int) -> int:
        with self._guard:
            self._grow_to("pwritev", handle, position + sum(memoryview(b).nbytes for b in buffers))
            return super().pwritev(handle, buffers, position)

    def copy_range(self, source: Handle, position: int, target: Handle, at: int, count: int) -> int:
        with self._guard:
            self._grow_to("copy_range", target, at + count)
            return super().copy_range(source, position, target, at, count)

    def allocate(self, handle: Handle, position: int, length: int) -> None:
        with self._guard:
            self._grow_to("allocate", handle, position + length)
            super().allocate(handle, position, length)

    def truncate(self, handle: Handle, size: int) -> None:
        with self._guard:
            before = os.fstat(handle.fd).st_size
            super().truncate(handle, size)
            self._free_blocks(max(_blocks(before) - _blocks(size), 0))

    def rename(self, source: Any, target: Any) -> None:
        with self._guard:
            if self.renames and not os.path.lexists(target):
                self._need("rename", target, 1)
            gone = _held(target)
            super().rename(source, target)
            self._free_blocks(gone)

    def unlink(self, path: Any) -> None:
        with self._guard:
            gone = _held(path)
            super().unlink(path)
            self._free_blocks(gone)


def _blocks(size: int) -> int:
    return -(-size // BLOCK)


def _held(path: Any) -> int:
    """The blocks of a file that go with its name."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return 0
    return _blocks(found.st_size) if found.st_nlink == 1 else 0
