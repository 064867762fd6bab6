"""Puts a file out of the page cache, and looks whether it has gone.

On disk: reads nothing; makes what was written durable, as dirty pages stay. Threads: any; nothing is kept.
posix_fadvise(2), mincore(2).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time

import numpy as np

_TRIES, _PAUSE = 50, 0.005  # seconds
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def evict(path: str) -> int:
    """Make the kernel drop the file's pages: how many are there all the same. OSError.

    What a socket has sent keeps its pages until the peer has acknowledged it, for which this waits.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(fd)
        for _ in range(_TRIES):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if not (left := resident(path)):
                break
            time.sleep(_PAUSE)
    finally:
        os.close(fd)
    return left


def pages(path: str) -> int:
    """How many pages the file has. OSError."""
    return -(-os.path.getsize(path) // mmap.PAGESIZE)


def resident(path: str) -> int:
    """How many of the file's pages the page cache holds. OSError as mincore(2)."""
    size = os.path.getsize(path)
    if not size:
        return 0
    there = np.zeros(pages(path), np.uint8)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
        data = np.frombuffer(mapped, np.uint8)
        failed = _libc.mincore(data.ctypes.data, size, there.ctypes.data)
        number = ctypes.get_errno()
        del data  # the mapping can be let go of once nothing points into it
    if failed:
        raise OSError(number, os.strerror(number), path)
    return int((there & 1).sum())
