"""A pool of open files, so that many partitions fit under a small RLIMIT_NOFILE.

On disk: nothing of its own.
Threads: any. A borrowed `Handle` stays open for as long as somebody refers to it; eviction only
drops the pool's own reference, so that no descriptor is closed under a running read.
"""

from __future__ import annotations

import os
import resource
from collections import OrderedDict

from segstore.files import Files, Handle
from segstore.mutex import nesting


def default_limit() -> int:
    """Half of RLIMIT_NOFILE's soft limit: the application needs descriptors too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 512 if soft == resource.RLIM_INFINITY else max(8, soft // 2)


class HandlePool:
    """Least recently opened files are let go first; `limit` handles at most are kept."""

    def __init__(self, files: Files, limit: int) -> None:
        self.files = files
        self.limit = limit
        self.lock = nesting()  # a handler may read in the midst of it
        self._open: OrderedDict[tuple[str, bool], Handle] = OrderedDict()
        self._forgotten = object()  # another since names were forgotten: what was opened before is not kept

    def get(self, path: str, *, write: bool = False) -> Handle:
        """The open file at `path`; OSError where it can't be opened."""
        key = (path, write)
        handle = self._open.get(key)
        if handle is not None:
            return handle
        while True:
            seen = self._forgotten
            handle = self.files.open(path, write=write)
            with self.lock:
                if seen is not self._forgotten:
                    continue  # the name may have been another file's
                handle = self._open.setdefault(key, handle)
                while len(self._open) > self.limit:
                    self._open.popitem(last=False)
            return handle

    def forget(self, path: str) -> None:
        """Let go of `path`: it was renamed, replaced or removed."""
        with self.lock:
            self._forgotten = object()
            self._open.pop((path, False), None)
            self._open.pop((path, True), None)

    def forget_directory(self, directory: str) -> None:
        """Let go of all in `directory`: it was renamed, or its files are looked at anew."""
        with self.lock:
            self._forgotten = object()
            for key in list(self._open):  # at once: a handler may read within the loop, and open a file
                if os.path.dirname(key[0]) == directory:
                    self._open.pop(key, None)

    def close(self) -> None:
        """Let go of all."""
        with self.lock:
            self._open.clear()
