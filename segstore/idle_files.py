"""Closes unused files if the process has no file descriptor left. Pools keep files open that are not in use;
this module asks the pools to close some, and touches no files itself.

Threads: any.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Protocol, TypeVar

from segstore.threads import LiveSet

NONE_LEFT = frozenset({errno.EMFILE, errno.ENFILE})
"""The error numbers that mean: the process, or the system, has no file descriptor left."""

T = TypeVar("T")


class FilePool(Protocol):
    """A pool of open files that are not in use."""

    def close_some(self) -> bool:
        """Close some files; return False if the pool has no files."""


_pools: LiveSet[FilePool] = LiveSet()
# The child of a fork begins without pools, because threads that the child does not have may own their locks.
os.register_at_fork(after_in_child=_pools.refs.clear)


def register(pool: FilePool) -> None:
    """Register a pool by a weak reference. `close_some` asks it to close files."""
    _pools.add(pool)


def close_some() -> bool:
    """Ask each pool of this process to close some files. Return False if no pool has files."""
    closed = [pool.close_some() for pool in _pools.all()]
    return any(closed)


def made_room(error: OSError) -> bool:
    """If the error means that there is no descriptor left, ask the pools to close some files. Return True if
    files were closed, so that the failed call can be repeated; else return False.
    """
    return error.errno in NONE_LEFT and close_some()


def with_descriptors(call: Callable[[], T]) -> T:
    """Call `call`, which opens files, and return its result. If it fails because there is no descriptor left,
    ask the pools to close some files, and repeat the call. Raises OSError of any other failure, or if no
    pool has files.
    """
    while True:
        try:
            return call()
        except OSError as error:
            if not made_room(error):
                raise
