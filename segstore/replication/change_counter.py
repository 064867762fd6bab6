"""`ChangeCounter`: a counter of changes in a replicated store. Threads of this process wait for the counter's
next change.

Nothing is on disk. Threads: any, but only of this process. `increment` does not block, and its caller may
hold locks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue

from segstore.threads import sleeps, take

_LONGEST_WAIT = 1e9  # seconds


class ChangeCounter:
    """A counter of `increment` calls, modulo 2**32. Threads can wait for the next call."""

    __slots__ = ("_count", "_waiting", "number")

    def __init__(self) -> None:
        self._count, self.number = count(1), 0
        self._waiting: list[SimpleQueue[None]] = []

    def increment(self) -> None:
        """Add 1 to the counter, and wake all waiting threads."""
        self.number = next(self._count) & 0xFFFFFFFF
        # A thread that is not in the list yet reads the new number before it sleeps, so it needs no wake-up.
        if not self._waiting:
            return
        for waiter in list(self._waiting):
            waiter.put(None)

    def until(self, look: Callable[[], bool], seconds: float, pause: float = _LONGEST_WAIT) -> bool:
        """Call `look` until it returns True, for at most `seconds`. Return the last result of `look`. `look`
        is called at once, after each `increment`, and every `pause` seconds.
        """
        deadline = time.monotonic() + seconds
        while True:
            seen, found = self.number, look()
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found
            self.wait(seen, min(left, pause))

    def wait(self, seen: int, seconds: float) -> None:
        """Sleep until `number` differs from `seen`, for at most `seconds`. The call may return earlier."""
        mine: SimpleQueue[None] = SimpleQueue()
        self._waiting.append(mine)
        try:
            # This thread is in the list now: each `increment` after the comparison wakes it.
            for sleep in sleeps(seconds):
                if self.number != seen:
                    return
                with suppress(Empty):
                    take(mine, sleep)
                    return
        finally:
            self._waiting.remove(mine)
