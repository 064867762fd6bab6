"""The coordinator's background work: timeouts, expiry, and what failed and is tried again. Nothing on disk.

Threads: runs in the store's scheduler; keeps neither the coordinator nor the store alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from segstore.config import StoreConfig
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from segstore.coordinator.transaction.coordinator import TransactionCoordinator

log = Logger("segstore")
FIRST_RETRY, LONGEST_RETRY = 0.1, 30.0  # seconds


class Upkeep:
    """Calls the coordinator; `failed` has it `settle` again, after pauses that double."""

    def __init__(self, coordinator: TransactionCoordinator, store: Store) -> None:
        self._scheduler = store._context.scheduler
        self._lock = Mutex()
        self._pause, self._planned = FIRST_RETRY, False
        self._coordinator = weakref.ref(coordinator)

    def start(self, config: StoreConfig) -> None:
        """Look for what takes too long and for what has expired, every so often."""
        timeouts = config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        expiry = config.transaction_remove_expired_transaction_cleanup_interval_ms
        self._scheduler.every(timeouts / 1000, self._task(lambda c: c.abort_timed_out()))
        self._scheduler.every(expiry / 1000, self._task(lambda c: c.expire()))

    def _task(self, do: Callable[[TransactionCoordinator], None]) -> Callable[[], None]:
        ref = self._coordinator

        def run() -> None:
            coordinator = ref()
            if coordinator is not None:
                do(coordinator)

        return run

    def failed(self, what: str, error: Exception) -> None:
        """Something that must be done could not be done now."""
        log.warning("%s, and could not be completed: %s", what, error)
        with self._lock:
            if self._planned:
                return
            self._scheduler.after(self._pause, self._task(lambda c: self._again(c)))
            self._planned = True  # last: where that was interrupted, the next failure plans it
            self._pause = min(self._pause * 2, LONGEST_RETRY)

    def _again(self, coordinator: TransactionCoordinator) -> None:
        with self._lock:
            self._planned = False
        coordinator.settle()
        with self._lock:
            if not self._planned:
                self._pause = FIRST_RETRY
