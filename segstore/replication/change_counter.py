"""`ChangeCounter`: a counter of changes in a replicated store, on which the threads of this process wait.

Nothing is on disk. Threads: any. `increment` does not block, and may be called with locks held. Threads of
other processes can't use the counter.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue

from segstore.threads import take

_LONGEST_WAIT = 1e9  # seconds


class ChangeCounter:
    """A counter of `increment` calls, modulo 2**32. Threads can wait for its next change."""

    __slots__ = ("_count", "_waiting", "number")

    def __init__(self) -> None:
        self._count, self.number = count(1), 0
        self._waiting: list[SimpleQueue[None]] = []

    def increment(self) -> None:
        """Raise the counter, and wake all waiting threads."""
        self.number = next(self._count) & 0xFFFFFFFF
        if not self._waiting:  # a thread that begins to wait now reads the new number first
            return
        for waiter in list(self._waiting):
            waiter.put(None)

    def until(self, look: Callable[[], bool], seconds: float, pause: float = _LONGEST_WAIT) -> bool:
        """Wait for at most `seconds` until `look` returns true; return the last result of `look`. `look` is
        called after each `increment`, and every `pause` seconds.
        """
        deadline = time.monotonic() + seconds
        while True:
            seen, found = self.number, look()
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found
            self.wait(seen, min(left, pause))

    def wait(self, seen: int, seconds: float) -> None:
        """Sleep until `number` differs from `seen`, for at most `seconds`; may return early."""
        mine: SimpleQueue[None] = SimpleQueue()
        self._waiting.append(mine)
        try:
            if self.number == seen:  # from here on each `increment` wakes this thread
                with suppress(Empty):
                    take(mine, seconds)
        finally:
            self._waiting.remove(mine)
