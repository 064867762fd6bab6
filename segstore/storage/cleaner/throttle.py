"""Holds the cleaner to its rate, and lets it be stopped. Nothing on disk.

Threads: `stop` may be called from any; the rest is the cleaning thread's.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

INTERVAL = 0.3  # seconds between two looks at the rate (org.apache.kafka.storage.internals.utils.Throttler)
LONGEST_WAIT = 3600.0


class CleaningStopped(Exception):
    """The store closes, or the log is no longer the one that was begun with: what was written is removed."""


class Throttle:
    """Called with the bytes that were read or are to be written: waits where that was too fast.

    `clock` gives seconds; `wait(seconds)` returns True, at once, when the cleaning is to stop.
    """

    def __init__(
        self,
        bytes_per_second: float = sys.float_info.max,
        *,
        clock: Callable[[], float] = time.monotonic,
        stopping: threading.Event | None = None,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._rate, self._clock = bytes_per_second, clock
        self._stopping = stopping or threading.Event()
        self._wait = wait or self._stopping.wait
        self._began, self._seen = clock(), 0

    def stop(self) -> None:
        """Let the next call, or the one that waits, raise CleaningStopped."""
        self._stopping.set()

    def __call__(self, nbytes: int) -> None:
        """CleaningStopped."""
        if self._stopping.is_set():
            raise CleaningStopped
        self._seen += nbytes
        now = self._clock()
        passed = now - self._began
        early = self._seen / self._rate - passed
        if early > 0 and (passed >= INTERVAL or early >= INTERVAL) and self._wait(min(early, LONGEST_WAIT)):
            raise CleaningStopped
        if passed >= INTERVAL or early >= INTERVAL:
            self._began, self._seen = self._clock(), 0
