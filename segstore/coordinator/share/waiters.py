"""`ShareWaiters`: fetches that wait until something becomes available to their group (Kafka: the keys by
which DelayedShareFetch is watched).

Nothing is on disk. Threads: any; calls are made with no lock held.
"""

from __future__ import annotations

from collections.abc import Callable

from segstore.mutex import Mutex

Wake = Callable[[], object]


class ShareWaiter:
    """A call that is made whenever something becomes available to a group, until `cancel`."""

    __slots__ = ("_waiters", "group", "wake")

    def __init__(self, waiters: ShareWaiters, group: str, wake: Wake) -> None:
        self._waiters, self.group, self.wake = waiters, group, wake

    def cancel(self) -> None:
        """Make no more calls; a second time nothing is done."""
        self._waiters.remove(self)


class ShareWaiters:
    """The waiting fetches of a store, by group."""

    def __init__(self) -> None:
        self._lock = Mutex()
        self._by_group: dict[str, tuple[ShareWaiter, ...]] = {}  # tuples: `wake` takes no lock

    def add(self, group: str, wake: Wake) -> ShareWaiter:
        """Have `wake` called, by any thread; it must not wait."""
        waiter = ShareWaiter(self, group, wake)
        with self._lock:
            self._by_group[group] = (*self._by_group.get(group, ()), waiter)
        return waiter

    def remove(self, waiter: ShareWaiter) -> None:
        """Forget a waiter."""
        with self._lock:
            left = tuple(each for each in self._by_group.get(waiter.group, ()) if each is not waiter)
            if left:
                self._by_group[waiter.group] = left
            else:
                self._by_group.pop(waiter.group, None)

    def wake(self, group: str) -> None:
        """Call those that wait for a group."""
        for waiter in self._by_group.get(group, ()):
            waiter.wake()

    def wake_all(self) -> None:
        """Call all, because the store is being closed."""
        for group in list(self._by_group):
            self.wake(group)
