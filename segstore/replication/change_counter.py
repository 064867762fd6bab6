"""`News`: how often anything was told in a replicated store, and who waits for that to change.

The directories of a replicated store publish their logs for other processes each by itself; the threads of
this process wait here. Threads: any. `tell` waits for nothing, and may be called with locks held.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue

from segstore.threads import take

_LONGEST_WAIT = 1e9  # seconds


class News:
    """A number that rises whenever something is told, modulo 2**32."""

    __slots__ = ("_count", "_waiting", "number")

    def __init__(self) -> None:
        self._count, self.number = count(1), 0
        self._waiting: list[SimpleQueue[None]] = []

    def tell(self) -> None:
        """Let all waits end."""
        self.number = next(self._count) & 0xFFFFFFFF
        if not self._waiting:  # one that comes now sees the number
            return
        for waiter in list(self._waiting):
            waiter.put(None)

    def until(self, look: Callable[[], bool], seconds: float, pause: float = _LONGEST_WAIT) -> bool:
        """Wait until `look` returns true, which is asked after each `tell`, and each `pause` seconds; for at
        most `seconds`. Return what it returned last.
        """
        deadline = time.monotonic() + seconds
        while True:
            seen, found = self.number, look()
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found
            self.wait(seen, min(left, pause))

    def wait(self, seen: int, seconds: float) -> None:
        """Sleep until something is told after `number` was `seen`, at most `seconds`; may return early."""
        mine: SimpleQueue[None] = SimpleQueue()
        self._waiting.append(mine)
        try:
            if self.number == seen:  # a `tell` from here on finds this wait
                with suppress(Empty):
                    take(mine, seconds)
        finally:
            self._waiting.remove(mine)
