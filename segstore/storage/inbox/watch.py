"""Tells when a file is renamed into a directory, without asking again and again (inotify).

On disk: nothing. Threads: one waits; any may stop it. Where the system has no watch left for this user,
waiting is a look every 50 ms.
"""

from __future__ import annotations

import errno
import os

from segstore._native import descriptors, lib
from segstore.logger import Logger
from segstore.threads import Latch

log = Logger("segstore")
_LOOK = 0.05  # seconds
_NONE_LEFT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOSYS, errno.EPERM})


class Watch:
    """Of one directory, which is there."""

    def __init__(self, directory: str) -> None:
        """OSError."""
        self._stopped = Latch()
        self._slot = descriptors()
        code = lib.seg_watch(self._slot, os.fsencode(directory))
        if code < 0:
            if -code not in _NONE_LEFT:
                raise OSError(-code, os.strerror(-code), directory)
            why = os.strerror(-code)
            log.warning("%s can't be watched (%s): it is looked at every 50 ms", directory, why)
        self._fd = self._slot[0]  # below 0: there is no watch

    def wait(self, seconds: float) -> bool:
        """Whether there may be news, or it was stopped, within so long. It may return early."""
        if self._fd < 0:
            return self._stopped.wait(min(seconds, _LOOK)) or True
        found = lib.seg_watch_wait(self._fd, int(min(seconds * 1000, 2**31 - 1)))
        if found < 0:
            raise OSError(-found, os.strerror(-found))
        return bool(found)

    @property
    def stopped(self) -> bool:
        return self._stopped.is_open

    def stop(self) -> None:
        """Let `wait` return, the one that is under way or the next."""
        self._stopped.open()
        if self._fd >= 0:
            lib.seg_watch_stop(self._fd)

    def close(self) -> None:
        """Once nobody waits any more."""
        self._fd = -1
        lib.seg_close(self._slot)
