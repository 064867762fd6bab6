"""`ShareWait`: the wait of a share consumer for records. A wait ends when records are published in the
consumer's partitions, when records become available to the group, when the group changes, or when `wakeup` is
called.

On disk: reads the memory mapping of `.segstore/ends`, in which the writer publishes the log ends. Threads:
one thread waits; any thread, and a signal handler within a wait, may call `ring` and `wakeup`. If one of
these is called between `begin` and the next `wait`, that `wait` returns at once.
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

# The longest sleep, in seconds.
_MOST = 86_400.0


class ShareWait:
    """The wait of one share consumer. `is_woken`: whether `wakeup` was called, and no poll has raised
    WakeupError after that. `wait` sets `_may_wait` before it checks `is_woken` and `_has_rung`. A thread that
    wakes the consumer sets one of these two flags before it reads `_may_wait`. So no wake-up is lost. A
    signal handler may run only after the sleep; `threads.longest_sleep` bounds its delay.
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
        """Make the running wait return at once, or the next wait if none is running. The poll then raises
        WakeupError.
        """
        self.is_woken = True
        if self._may_wait:
            self._rouse()

    def _rouse(self) -> None:
        try:
            self._store.wake()
        except SegstoreError:
            """The store is closed, so there are no more waits."""

    def begin(self, partitions: Sequence[TopicPartition]) -> None:
        """Called before the partitions are checked for records. If, after this call, a process publishes log
        ends, or `ring` or `wakeup` is called, the next `wait` returns at once.
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

    # A signal handler may close the consumer during this call, because nothing is half changed.
    @calls_out
    def wait(self, seconds: float, *, is_deaf: bool = False) -> None:
        """Sleep for `seconds`, or until a process publishes log ends, the group changes, or `ring` or
        `wakeup` is called. If `is_deaf`, only published log ends and `wakeup` end the sleep early.
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
        """Sleep for `seconds`, or until a process publishes log ends, or `wakeup` is called. A nudge, which
        is a wake-up without a publication, does not end the sleep: the consumer causes nudges when it cancels
        its own acquisitions.
        """
        end, tailed, clock = time.monotonic() + seconds, self._tailed, self._store.context
        while tailed is not None and not (self.is_woken or clock.closed):
            left = end - time.monotonic()
            nudges = tailed.nudges()
            if left <= 0 or 0 <= self._store.wait_for(tailed, nudges, left) < tailed.n:
                return


class ShareBell:
    """A callback that the coordinator calls when records become available. It wakes the consumer. The object
    has only a weak reference to the consumer's `ShareWait`.
    """

    def __init__(self, wait: ShareWait, coordinator: ShareCoordinator, group: str) -> None:
        self._wait = weakref.ref(wait)
        # The attribute is set here first, so that `cancel` works even if the next line is interrupted.
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
