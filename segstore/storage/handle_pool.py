"""`HandlePool`: a pool of open files, by which a process with a small RLIMIT_NOFILE can use many partitions.

Threads: any. A `Handle` stays open while it is referenced. Eviction drops only the pool's own reference, so
that no descriptor is closed during a read.
"""

from __future__ import annotations

import os
import resource
from collections import OrderedDict
from collections.abc import Callable

from segstore import idle_files
from segstore.files import Files, Handle
from segstore.mutex import nesting


def default_limit() -> int:
    """Return half of RLIMIT_NOFILE's soft limit, because the application needs descriptors too. Return at
    least 8, and 512 if there is no limit.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 512 if soft == resource.RLIM_INFINITY else max(8, soft // 2)


class HandlePool:
    """A pool of at most `limit` open files, or fewer if the process runs out of descriptors. The files that
    were opened first leave the pool first.
    """

    def __init__(self, files: Files, limit: int) -> None:
        self.files = files
        self.limit = limit
        # This lock can be taken again by the same thread, because a signal handler may read while the thread
        # has it.
        self.lock = nesting()
        self._open: OrderedDict[tuple[str, bool], Handle] = OrderedDict()
        self.opened = self._open.get
        """`opened((path, write))` returns the open file, or None if the pool has no such file."""
        # Each `forget` replaces this object. A `get` that notices this while it opens a file opens the path
        # again, because another file may be there now.
        self._forgotten = object()
        idle_files.register(self)

    def get(self, path: str, *, write: bool = False) -> Handle:
        """Return the open file at `path`. Raises OSError if it can't be opened."""
        key = (path, write)
        handle = self._open.get(key)
        if handle is not None:
            return handle
        while True:
            seen = self._forgotten
            handle = self.files.open(path, write=write)
            with self.lock:
                if seen is not self._forgotten:
                    continue  # the file is opened again, because another file may be at the path now
                handle = self._open.setdefault(key, handle)
            if len(self._open) > self.limit:
                self._drop_oldest(lambda _: self.limit)
            return handle

    def close_some(self) -> bool:
        """Remove a quarter of the files from the pool, to free descriptors; return False if the pool was
        empty.
        """
        return self._drop_oldest(lambda there: there * 3 // 4)

    def _drop_oldest(self, limit: Callable[[int], int]) -> bool:
        """Remove from the pool the files that were opened first, until `limit(number of files)` files are
        left, and return whether a file was removed.
        """
        with self.lock:
            # The files are counted under the lock, because another thread may remove files too.
            kept = limit(len(self._open))
            dropped = [self._open.popitem(last=False)[1] for _ in range(len(self._open) - kept)]
        for each in dropped:  # the lock is not held here, because `let_go` may wait for an append in C
            each.let_go()
        return bool(dropped)

    def forget(self, path: str) -> None:
        """Remove the file at `path` from the pool, because it was renamed, replaced or deleted."""
        with self.lock:
            self._forgotten = object()
            self._drop((path, False))
            self._drop((path, True))

    def forget_directory(self, directory: str) -> None:
        """Remove all files in `directory` from the pool, because the directory was renamed, or because its
        files may have been replaced.
        """
        with self.lock:
            self._forgotten = object()
            for key in list(self._open):  # the loop uses a copy, because a signal handler may open a file
                if os.path.dirname(key[0]) == directory:
                    self._drop(key)

    def close(self) -> None:
        """Remove all files from the pool."""
        with self.lock:
            for key in list(self._open):
                self._drop(key)

    def _drop(self, key: tuple[str, bool]) -> None:
        handle = self._open.pop(key, None)
        if handle is not None:
            handle.let_go()
