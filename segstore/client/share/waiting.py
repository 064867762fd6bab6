"""`ShareWait`: lets a share consumer wait for records, until records are published in its partitions or
become available to its group, the group changes, or `wakeup` is called.

On disk: the mapping of published ends is read. Threads: one waits; any may call `ring` and `wakeup`, also a
signal handler within a wait. If `ring` or `wakeup` is called between a look and the following wait, that wait
returns at once.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence

from segstore.coordinator.share.share import ShareCoordinator
from segstore.coordinator.share.waiters import ShareWaiter
from segstore.coordinator.structs import TopicPartition
from segstore.errors import SegstoreError
from segstore.mutex import calls_out
from segstore.storage.meta.tailed_ends import TailedEnds
from segstore.storage.store.store import Store

_MOST = 86_400.0  # seconds


class ShareWait:
    """The wait of one share consumer. `is_woken`: `wakeup` was called, and no poll has raised WakeupError
    since. `_may_wait` is set before the wait checks its flags, and a thread that wakes the consumer sets a
    flag before it reads `_may_wait`, so that no wake-up is lost.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_woken = False
        self._has_rung = self._may_wait = False
        self._partitions: Sequence[TopicPartition] = ()
        self._tailed: TailedEnds | None = None
        self._nudges = self._publications = 0

    def ring(self) -> None:
        """Wake the consumer, because records became available."""
        self._has_rung = True
        if self._may_wait:
            self._rouse()

    def wakeup(self) -> None:
        """Make the running wait, or else the next wait, return at once; the poll then raises WakeupError."""
        self.is_woken = True
        if self._may_wait:
            self._rouse()

    def _rouse(self) -> None:
        try:
            self._store.wake()
        except SegstoreError:
            """The store is closed, so there are no more waits."""

    def begin(self, partitions: Sequence[TopicPartition]) -> None:
        """Begin a look for records. If there is a publication or a call of `ring` or `wakeup` after `begin`,
        the next `wait` returns at once.
        """
        self._has_rung = False
        self._publications = self._store.publications
        tailed = self._tailed
        if tailed is None or tailed.outdated or self._partitions != partitions:
            self._tailed = None
            tailed = self._store.tail_ends(partitions)
            self._tailed, self._partitions = tailed, partitions
        if tailed is not None:
            self._nudges = tailed.nudges()

    @calls_out  # a signal handler may close the consumer here: no state is half changed
    def wait(self, seconds: float, *, is_deaf: bool = False) -> None:
        """Sleep for `seconds`, or until there is a publication, a change of the group, or a call of `ring` or
        `wakeup`. If `is_deaf`, only a publication and `wakeup` end the sleep.
        """
        self._may_wait = True
        try:
            if (self._has_rung and not is_deaf) or self.is_woken:
                return
            if is_deaf:
                self._sleep_deaf(seconds)
            elif self._tailed is None:
                self._store.wait(self._publications, seconds * 1000)
            else:
                self._store.wait_for(self._tailed, self._nudges, min(seconds, _MOST))
        finally:
            self._may_wait = False

    def _sleep_deaf(self, seconds: float) -> None:
        """Sleep until a publication or `wakeup`. Nudges do not end the sleep, because the consumer itself
        causes nudges when it cancels its acquisitions.
        """
        end, tailed, clock = time.monotonic() + seconds, self._tailed, self._store.context
        while tailed is not None and not (self.is_woken or clock.closed):
            left = end - time.monotonic()
            nudges = tailed.nudges()
            if left <= 0 or 0 <= self._store.wait_for(tailed, nudges, left) < tailed.n:
                return


class ShareBell:
    """A callback that the coordinator calls when records become available, and that wakes the consumer. The
    bell has only a weak reference to the consumer's `ShareWait`.
    """

    def __init__(self, wait: ShareWait, coordinator: ShareCoordinator, group: str) -> None:
        self._wait = weakref.ref(wait)
        # set first, so that `cancel` works even if the next line is interrupted
        self._waiter: ShareWaiter | None = None
        self._waiter = coordinator.on_available(group, self._ring)

    def _ring(self) -> None:
        wait = self._wait()
        if wait is None:
            self.cancel()
        else:
            wait.ring()

    def cancel(self) -> None:
        """Remove the callback from the coordinator."""
        if self._waiter is not None:
            self._waiter.cancel()
