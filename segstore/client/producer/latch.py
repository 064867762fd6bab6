"""A one-way gate that costs one lock, made only when somebody waits. Nothing on disk.

Threads: any number wait; one opens it, once.
"""

from __future__ import annotations

import threading

LONGEST_WAIT = threading.TIMEOUT_MAX


class Latch:
    """Closed until `open`."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        """Let all through, now and later."""
        self._lock.release()

    def wait(self, seconds: float | None) -> bool:
        """Whether it is open; None waits as long as it takes."""
        wait = LONGEST_WAIT if seconds is None else min(max(seconds, 0), LONGEST_WAIT)
        if not self._lock.acquire(timeout=wait):
            return False
        # The next who waits goes through by this.
        self._lock.release()
        return True
