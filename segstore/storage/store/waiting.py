"""Waits until a store is no longer open for writing elsewhere. Nothing on disk. Threads: any."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from segstore.errors import StoreLockedError

T = TypeVar("T")

_SHORTEST, _LONGEST = 0.001, 0.1  # seconds between two tries


def until_unlocked(attempt: Callable[[], T], seconds: float) -> T:
    """Return what `attempt` returns, which is called again where it raises StoreLockedError, for up to
    `seconds`; then that error is raised.

    It is called again and again, ever more seldom: a blocking wait for a lock of an open file ends at no time
    limit, and one in another thread might take the lock after the limit.
    """
    deadline, pause = time.monotonic() + seconds, _SHORTEST
    while True:
        try:
            return attempt()
        except StoreLockedError:
            left = deadline - time.monotonic()
            if left <= 0:
                raise
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST)
