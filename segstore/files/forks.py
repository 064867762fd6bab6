"""What a fork does to a child process: a page of memory is cleared, by which a process is told from its
children without a system call each time, and files are closed that belong to the parent alone.

Nothing is on disk. Threads: any.
"""

from __future__ import annotations

import mmap
import os
from typing import Protocol

from segstore.threads import LiveSet

_WIPE_ON_FORK = 18  # MADV_WIPEONFORK of Linux, which Python's mmap does not name


class Here(Protocol):
    """`here[0]` is 1 in the process that made it, and 0 in children of that process."""

    def __getitem__(self, index: int, /) -> int: ...


class _ByNumber:
    """The same where the kernel can't clear pages: before Linux 4.14."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def __getitem__(self, index: int, /) -> int:
        return int(os.getpid() == self._pid)


def here() -> Here:
    """Return what tells this process from its children, however they are forked."""
    page = mmap.mmap(-1, 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        page.madvise(_WIPE_ON_FORK)
    except OSError:
        return _ByNumber()
    page[0] = 1
    return page


class Closable(Protocol):
    """What has descriptors of a process."""

    def close(self) -> object: ...


_inherited: LiveSet[Closable] = LiveSet()


def close_in_children(opened: Closable) -> None:
    """Have `close` called in each child process that this one forks, for as long as `opened` lives.

    A lock of an open file ends with the last descriptor, and a connection, too. A child that is made by a
    bare clone(2) keeps them until it ends, or runs another program.
    """
    _inherited.add(opened)


def _close_inherited() -> None:
    for opened in _inherited.all():
        opened.close()


os.register_at_fork(after_in_child=_close_inherited)
