"""Effects of a fork on the child process. A page of memory is cleared in the child, so that a process can
check without a system call whether it is a child. Descriptors that belong only to the parent are closed.

Nothing is on disk. Threads: any.
"""

from __future__ import annotations

import mmap
import os
from typing import Protocol

from segstore.threads import LiveSet

_WIPE_ON_FORK = 18  # this is MADV_WIPEONFORK of Linux, which Python's mmap does not name


class Here(Protocol):
    """A flag: `here[0]` is 1 in the process that made it, and 0 in its children."""

    def __getitem__(self, index: int, /) -> int: ...


class _ByNumber:
    """A flag that compares process numbers, for kernels before Linux 4.14, which can't clear pages."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def __getitem__(self, index: int, /) -> int:
        return int(os.getpid() == self._pid)


def here() -> Here:
    """Return a flag that is 1 in this process and 0 in its children, after every kind of fork."""
    page = mmap.mmap(-1, 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        page.madvise(_WIPE_ON_FORK)
    except OSError:
        return _ByNumber()
    page[0] = 1
    return page


class Closable(Protocol):
    """An object with descriptors that belong to one process."""

    def close(self) -> object: ...


_inherited: LiveSet[Closable] = LiveSet()


def close_in_children(opened: Closable) -> None:
    """Make each child process that is forked while `opened` exists call `opened.close`. Otherwise the child
    would keep the parent's locks and connections alive, because a lock or connection ends only when its last
    descriptor is closed. A child made by a bare clone(2) keeps the descriptors until it exits or runs another
    program.
    """
    _inherited.add(opened)


def _close_inherited() -> None:
    for opened in _inherited.all():
        opened.close()


os.register_at_fork(after_in_child=_close_inherited)
