"""Where tests write that ask nothing of a disk: in memory, where there is such a place with room.

A store that is killed at each of its calls is copied, synced and removed a hundred times, and waits for the
disk most of that time. What a SIGKILL leaves is the same there. What power cuts leave is drawn (`faulty`).
"""

from __future__ import annotations

import os
import tempfile

SHM = "/dev/shm"
ROOM = 512 << 20  # bytes that must be free; containers often have 64 MB
FILES = 100_000  # and so many inodes


def place() -> str | None:
    """The directory for `tempfile`; None, the usual one, where there is none in memory."""
    if not os.access(SHM, os.W_OK | os.X_OK):
        return None
    free = os.statvfs(SHM)
    return SHM if free.f_bavail * free.f_frsize >= ROOM and free.f_favail >= FILES else None


def directory() -> tempfile.TemporaryDirectory[str]:
    """A new one, removed at the end of its `with`, or with the process."""
    return tempfile.TemporaryDirectory(prefix="segstore-", dir=place())
