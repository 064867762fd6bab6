"""`Gate`: where the sender sleeps until there is something new. Nothing on disk.

Threads: the sender sleeps; any wakes it, with the producer's lock held, but for `wake_from_anywhere`.
"""

from __future__ import annotations

import contextlib
import threading
import time

from segstore.client.producer.lock import ProducerLock

LONGEST_WAIT = threading.TIMEOUT_MAX


class Gate:
    """`asleep`: set with the producer's `lock` held by who is going to `sleep` then."""

    def __init__(self, lock: ProducerLock) -> None:
        self._lock, self._gate = lock, threading.Lock()
        self._gate.acquire()
        self.asleep = False

    def sleep(self, until: float | None) -> None:
        """Return when there is something new, or at `until` (monotonic seconds). Takes the lock."""
        seconds = LONGEST_WAIT if until is None else min(max(until - time.monotonic(), 0), LONGEST_WAIT)
        if self._gate.acquire(timeout=seconds):
            return
        with self._lock:
            if self.asleep:
                self.asleep = False
                return
        # It was opened at the last moment: close it behind us.
        self._gate.acquire()

    def wake(self) -> None:
        """There is something new."""
        if self.asleep:
            self.asleep = False
            self._gate.release()

    def wake_from_anywhere(self) -> None:
        """As `wake`, without the lock: this thread may hold it in another frame."""
        with contextlib.suppress(RuntimeError):  # another opened it at this moment
            self.wake()
