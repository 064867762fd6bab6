"""Open but unused files, which are closed if the process has no descriptor for another file. Pools keep such
files; this module knows the pools, and touches no files itself.

Threads: any.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Protocol, TypeVar

from segstore.threads import LiveSet

NONE_LEFT = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors if the process, or the system, has no descriptor left."""

T = TypeVar("T")


class FilePool(Protocol):
    """A pool of open files."""

    def close_some(self) -> bool:
        """Close some files; return False if the pool has no files."""


_pools: LiveSet[FilePool] = LiveSet()
# A child of a fork starts without pools: threads that the child lacks may hold the locks of a pool.
os.register_at_fork(after_in_child=_pools.refs.clear)


def register(pool: FilePool) -> None:
    """Register a pool that closes files on demand; only a weak reference to the pool is kept."""
    _pools.add(pool)


def close_some() -> bool:
    """Make each pool of this process close some files; return False if no pool has files."""
    closed = [pool.close_some() for pool in _pools.all()]
    return any(closed)


def made_room(error: OSError) -> bool:
    """Make pools close files after an error for lack of a descriptor, so that the failed call can be
    repeated. Return False if no file was closed: after any other error, or if no pool has files.
    """
    return error.errno in NONE_LEFT and close_some()


def with_descriptors(call: Callable[[], T]) -> T:
    """Return the result of `call`, which opens files. The call is repeated while it fails for lack of a
    descriptor and pools can close files. Raises OSError.
    """
    while True:
        try:
            return call()
        except OSError as error:
            if not made_room(error):
                raise
