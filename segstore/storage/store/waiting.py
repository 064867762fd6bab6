"""Waits until another process closes a store that is open for writing. Nothing on disk. Threads: any."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from segstore.errors import StoreLockedError

T = TypeVar("T")

_SHORTEST, _LONGEST = 0.001, 0.1  # seconds between two tries


def until_unlocked(attempt: Callable[[], T], seconds: float) -> T:
    """Return the result of `attempt`, which is called again if it raises StoreLockedError, for up to
    `seconds`; then that error is raised.

    It is polled with growing pauses, because a blocking wait for a lock of an open file has no timeout.
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
