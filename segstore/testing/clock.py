"""`Clock`: the time of a test's brokers. It advances only when the test calls `advance`.

Threads: any.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from segstore.config import arguments
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import existing, shared
from segstore.coordinator.transaction.coordinator import TransactionCoordinator
from segstore.integers import INT64_MAX
from segstore.mutex import Mutex
from segstore.storage.context import wall_clock
from segstore.storage.store.store import Store
from segstore.storage.store.writer import StoreWriter

_MOST_MS = INT64_MAX >> 1


class Clock:
    """A clock that shows ms since the epoch. It starts at `now_ms`, by default at the machine's time. Several
    brokers may use the same clock.
    """

    def __init__(self, now_ms: int | None = None) -> None:
        self._now = wall_clock() if now_ms is None else arguments.whole("now_ms", now_ms, 0, _MOST_MS)
        self._lock = Mutex()
        self._listeners: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._now})"

    def __call__(self) -> int:
        return self._now

    def advance(self, ms: int) -> None:
        """Advance the time by `ms`, and return when each running broker has done the work that is due at the
        new time: it ends sessions and rebalances of groups, aborts transactions, expires offsets,
        transactional ids and producer ids, deletes old segments, compacts, and removes deleted files. Raises
        InvalidArgumentError, InvalidTypeError, StorageError.
        """
        ms = arguments.whole("ms", ms, 0, _MOST_MS)
        with self._lock:
            self._now += ms
        for listener in list(self._listeners):
            listener()

    def attach(self, listener: Callable[[], None]) -> None:
        """Make `advance` call `listener`, until `detach(listener)` is called."""
        self._listeners.append(listener)

    def detach(self, listener: Callable[[], None]) -> None:
        """Remove a listener that `attach` has added."""
        self._listeners.remove(listener)

    def govern(self, store: Store) -> None:
        """Make the group coordinator of a store with this clock. The store must have been opened with this
        clock.
        """
        shared(store, GroupCoordinator, partial(GroupCoordinator, clock=self))

    def run_due(self, store: Store) -> None:
        """Do the work of a store that is due at this clock's time. The store's own threads would do this work
        later, because their waits are measured by the machine's clock.
        """
        if (groups := existing(store, GroupCoordinator)) is not None:
            groups.run_due()
        if (transactions := existing(store, TransactionCoordinator)) is not None:
            transactions.abort_timed_out()
            transactions.expire()
        if (offsets := existing(store, GroupOffsets)) is not None:
            offsets.expire()
        writer = store.writer()
        assert isinstance(writer, StoreWriter)  # a Broker's store is never a replicated store
        writer.expire_producers()
        store.sweep()
        store.context.graveyard.clear()
