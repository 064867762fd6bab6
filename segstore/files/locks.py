"""Lock files: locked as `segstore.locks` does it, and holding their holder's pid as text.

On disk: the file that is locked. Threads: any. Made of the other calls of `Files`, so that a fault can hit
each step.
"""

from __future__ import annotations

import errno
import os

from segstore import locks
from segstore.files.calls import Content
from segstore.files.handle import Handle, Path, named
from segstore.files.opening import Opening
from segstore.files.stats import Stats

_TRIES = 100


class Locking(Opening, Content, Stats):
    """A lock ends with its handle, or with its process."""

    def lock(self, path: Path) -> Handle:
        """Lock a file (made where missing), which then holds our pid as text, until the handle is closed.

        BlockingIOError where anybody, a live Kafka broker too, holds a lock on it; EMLINK where the file has
        another name, under which it may be anything; other OSErrors as `open`.
        """
        for _ in range(_TRIES):
            handle = self.open(path, write=True, create=True)
            try:
                if self._take(handle, path):
                    return handle
            except OSError as e:
                handle.close()
                raise e if e.filename else named(e, handle.path) from None
            handle.close()
        raise OSError(errno.EAGAIN, "The lock file was removed again and again", os.fspath(path))

    def _take(self, handle: Handle, path: Path) -> bool:
        """Lock an open file: False where its name was removed meanwhile, since the lock would then exclude
        nobody who opens a file by that name.
        """
        try:
            if self.links(path) > 1:
                raise OSError(errno.EMLINK, "A lock file that has another name (a hard link)", handle.path)
            locks.take(handle)
            if self.inode(path) != self.inode(handle):
                return False
        except FileNotFoundError:
            return False
        text = str(os.getpid()).encode()
        self.pwrite(handle, text, 0)
        self.truncate(handle, len(text))
        return True

    def lock_holder(self, path: Path) -> int | None:
        """The pid that has locked the file, 0 where it can't be told, None where nobody has. OSError."""
        try:
            handle = self.open(path)
        except FileNotFoundError:
            return None
        with handle:
            pid = locks.holder(handle.fd)
            if pid is None or pid > 0:
                return pid
            text = self.pread(handle, 20, 0)
        return int(text) if text.isdigit() else 0

    def is_locked(self, path: Path) -> bool:
        """Whether anybody holds a lock on the file; False where it is missing. OSError as `open`."""
        return self.lock_holder(path) is not None
