"""The state of the machine for a run: the cores of sender and receiver, and a file's presence in the page
cache.

On a machine with two cores, sender and receiver have one core each, always the same. Otherwise the scheduler
would at times run both on one core, and such a run takes twice as long. Threads: only the caller's thread,
and the threads that it starts, are bound to a core.
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
    """Context manager: during the block this thread stays on one core. Yields the number of another core. If
    there is only one core, it yields None, and binds nothing.
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
    """Return two processors, of different cores if possible; the second is None if there is only one."""
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

# This part removes a file from the page cache, and checks the removal, by posix_fadvise(2) and mincore(2).
#
# On disk the file is synced first, because dirty pages would stay in the page cache. Threads: any; the
# caller's thread runs on each core for a moment.

_TRIES, _PAUSE = 50, 0.005  # seconds
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def evict(path: str) -> int:
    """Make the kernel drop the file's pages, and return the number of pages that stayed. Raises OSError.

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
    """Send each core a packet. After a TCP peer on another core has read bytes, the sender's core frees the
    pages of these bytes only when it receives a packet (Linux's skb_attempt_defer_free).
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
    """Return the number of the file's pages in the page cache. Raises OSError as mincore(2)."""
    size = os.path.getsize(path)
    if not size:
        return 0
    there = np.zeros(pages(path), np.uint8)
    with open(path, "rb") as file:
        # The mapping is not closed, but removed with its last reference, because close() would raise if an
        # interrupt has left a pointer into the mapping.
        data = np.frombuffer(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ), np.uint8)
    if _libc.mincore(data.ctypes.data, size, there.ctypes.data):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return int((there & 1).sum())
