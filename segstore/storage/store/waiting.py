"""Waits until another process has closed a store that it had open for writing. Nothing is on disk. Threads:
any.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from segstore.errors import StoreLockedError

T = TypeVar("T")

_SHORTEST, _LONGEST = 0.001, 0.1  # seconds between two tries


def until_unlocked(attempt: Callable[[], T], seconds: float) -> T:
    """Return the result of `attempt()`. While `attempt` raises StoreLockedError, it is called again, with
    growing pauses. After `seconds` the last StoreLockedError is raised.
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
