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
    `seconds`. After that time the last StoreLockedError is raised.

    The pauses between calls grow. A blocking wait for the lock has no timeout, so it can't be used.
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
