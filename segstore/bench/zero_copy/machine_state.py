"""Sets the state of the machine for a run: the cores of sender and receiver, and whether a file is in the
page cache.

On a machine with two cores, the sender always runs on one core and the receiver on the other. If they were
not bound, the scheduler would at times run both on one core, and such a run takes twice as long. Threads:
only the calling thread, and threads that it starts, are bound to a core.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


@contextmanager
def apart() -> Iterator[int | None]:
    """Context manager: during the block the calling thread runs only on one core. Yields the number of
    another core. If there is only one core, yields None, and binds nothing.
    """
    allowed = os.sched_getaffinity(0)
    ours, theirs = _pair(sorted(allowed))
    if theirs is None:
        yield None
        return
    os.sched_setaffinity(0, {ours})
    try:
        yield theirs
    finally:
        os.sched_setaffinity(0, allowed)


def _pair(allowed: list[int]) -> tuple[int, int | None]:
    """Return the numbers of two processors, of different cores if possible. The second is None if there is
    only one processor.
    """
    ours, *others = allowed
    siblings = _siblings(ours)
    apart = [core for core in others if core not in siblings]
    return ours, next(iter([*apart, *others]), None)


def _siblings(core: int) -> set[int]:
    try:
        with open(_SIBLINGS.format(core), encoding="ascii") as file:
            spans = [part.split("-") for part in file.read().strip().split(",")]
    except OSError:
        return set()
    return {n for first, *last in spans for n in range(int(first), int(last[0] if last else first) + 1)}


# --- cold --------------------------------------------------------------------------------------

# The code below removes a file from the page cache by posix_fadvise(2), and checks the removal by mincore(2).
#
# On disk: the file is synced first, because dirty pages would stay in the page cache. Threads: any; the
# calling thread runs on each core for a moment.

_TRIES, _PAUSE = 50, 0.005  # maximum number of tries, seconds between two tries
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def evict(path: str) -> int:
    """Tell the kernel to drop the file's pages, and return the number of pages that are still in the page
    cache. Raises OSError.

    Pages that were sent to a socket stay until the peer has acknowledged them, or longer (`_free_deferred`).
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(fd)
        for _ in range(_TRIES):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if not (left := resident(path)):
                break
            _free_deferred()
            time.sleep(_PAUSE)
    finally:
        os.close(fd)
    return left


def _free_deferred() -> None:
    """Let each core receive a packet. When a TCP peer on another core has read bytes, the sender's core does
    not free their pages before it receives a packet (Linux's skb_attempt_defer_free).
    """
    cores = os.sched_getaffinity(0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.bind(("127.0.0.1", 0))
        own.connect(own.getsockname())
        try:
            for core in cores:
                os.sched_setaffinity(0, {core})
                own.send(b"\0")
                own.recv(1)
        finally:
            os.sched_setaffinity(0, cores)


def pages(path: str) -> int:
    """Return the number of the file's pages. Raises OSError."""
    return -(-os.path.getsize(path) // mmap.PAGESIZE)


def resident(path: str) -> int:
    """Return how many of the file's pages are in the page cache, by mincore(2). Raises OSError."""
    size = os.path.getsize(path)
    if not size:
        return 0
    there = np.zeros(pages(path), np.uint8)
    with open(path, "rb") as file:
        # The mapping is not closed here: it is unmapped when its last reference is gone. close() would raise
        # if an interrupt had left a pointer into the mapping.
        data = np.frombuffer(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ), np.uint8)
    if _libc.mincore(data.ctypes.data, size, there.ctypes.data):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return int((there & 1).sum())
