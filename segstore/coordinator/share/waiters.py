"""`ShareWaiters`: wakes fetches that wait for available records of their group (Kafka: the watch keys of
DelayedShareFetch).

Nothing is on disk. Threads: any; calls are made without a lock.
"""

from __future__ import annotations

from collections.abc import Callable

from segstore.mutex import Mutex

Wake = Callable[[], object]


class ShareWaiter:
    """A registered function `wake`. Until `cancel` is called, `wake` is called whenever records of `group`
    become available.
    """

    __slots__ = ("_waiters", "group", "wake")

    def __init__(self, waiters: ShareWaiters, group: str, wake: Wake) -> None:
        self._waiters, self.group, self.wake = waiters, group, wake

    def cancel(self) -> None:
        """Stop the calls of `wake`. A second call of `cancel` does nothing."""
        self._waiters.remove(self)


class ShareWaiters:
    """The waiting fetches of a store, by group."""

    def __init__(self) -> None:
        self._lock = Mutex()
        # The values are immutable, so the method `wake` needs no lock.
        self._by_group: dict[str, tuple[ShareWaiter, ...]] = {}

    def add(self, group: str, wake: Wake) -> ShareWaiter:
        """Register the function `wake`. Any thread may call it, so it must not wait."""
        waiter = ShareWaiter(self, group, wake)
        with self._lock:
            self._by_group[group] = (*self._by_group.get(group, ()), waiter)
        return waiter

    def remove(self, waiter: ShareWaiter) -> None:
        """Remove a waiter."""
        with self._lock:
            waiters = tuple(each for each in self._by_group.get(waiter.group, ()) if each is not waiter)
            if waiters:
                self._by_group[waiter.group] = waiters
            else:
                self._by_group.pop(waiter.group, None)

    def wake(self, group: str) -> None:
        """Call `wake` of all waiters of a group."""
        for waiter in self._by_group.get(group, ()):
            waiter.wake()

    def wake_all(self) -> None:
        """Call `wake` of all waiters, because the store is being closed."""
        for group in list(self._by_group):
            self.wake(group)
