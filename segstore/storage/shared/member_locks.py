"""Locks bytes of `.segstore/members`: each member of a shared store holds the lock of one byte.

The file is empty. A member has an open file description lock on the byte whose offset is the index of the
member's slot. When the member's process ends, the kernel releases the lock, so no pid, heartbeat or timeout
is needed to notice that a member has died. The byte SEG_MAKING_BYTE is locked while `.segstore/shared` is
made. Threads: any, because the functions have no state.
"""

from __future__ import annotations

import errno
import time

from segstore import names
from segstore._native import lib
from segstore.errors import StorageError
from segstore.files import Files, Handle

MOST: int = lib.SEG_MEMBERS
"""The largest number of members of a store."""
_NO_RIGHT = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_PATIENCE, _PAUSE = 10.0, 0.005  # the longest wait for a lock, and the pause between two tries, in seconds


def path_of(root: str) -> str:
    """Return the path of a store's file `members`."""
    return names.below(root, f"{names.OURS}/{names.MEMBERS}")


def open_shared(files: Files, path: str, *, create: bool = False) -> Handle:
    """Open a file of a shared store for writing. Raises OSError, and StorageError if this process has no
    permission.
    """
    try:
        return files.open(path, write=True, create=create)
    except OSError as error:
        if error.errno not in _NO_RIGHT:
            raise
        why = f'{error.strerror}: who shares a store writes its files, or opens it with mode="r"'
        raise StorageError(error.errno, why, path) from error


def take_making(files: Files, root: str) -> Handle:
    """Lock the byte SEG_MAKING_BYTE, and return the handle; closing the handle releases the lock. A missing
    file `members` is created. Raises StorageError, OSError.
    """
    path = path_of(root)
    if files.exists(path) and files.links(path) > 1:
        files.unlink(path)  # a copy of the store that was made by hard links would share the locks
    handle = open_shared(files, path, create=True)
    end = time.monotonic() + _PATIENCE
    try:
        while True:
            try:
                files.lock_byte(handle, lib.SEG_MAKING_BYTE)
                return handle
            except BlockingIOError:
                if time.monotonic() > end:
                    raise
            time.sleep(_PAUSE)
    except BaseException:
        handle.close()
        raise
