"""`segstore.open`: opens a store, and ends the transactions that an earlier process left open.

On disk: through `storage.store`; and through `coordinator.transaction` where a store that has had
transactions has an open one, or was not closed. A broker's directory is not changed.
Threads: any.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from segstore.coordinator.shared import shared
from segstore.errors import SegstoreError
from segstore.files import Files
from segstore.logger import Logger
from segstore.storage.context import Clock, wall_clock
from segstore.storage.meta.topic_info import CONSUMER_OFFSETS, TRANSACTION_STATE
from segstore.storage.store import store as storage
from segstore.storage.store.store import Store

log = Logger("segstore")

RETRY = 30.0  # seconds


def open(
    path: str | os.PathLike[str],
    mode: str = "rw",
    *,
    config: Mapping[str, Any] | None = None,
    clock: Clock = wall_clock,
    files: Files | None = None,
    file_mode: int | None = None,
    timeout: float | None = None,
) -> Store:
    """Open a store, which is a directory; mode "rw" makes the directory if it is missing.

    "rw": this process is the only writer. After a crash the store is recovered first (`Store.recovered`
    lists the changes). Transactions that were being committed are completed. Other open transactions are
    aborted, unless their producer is a client of a server: it may go on. "r": takes no lock and changes
    nothing; the directory may be a Kafka broker's.
    `config`: the store's settings by Kafka's names; `clock` returns ms since the epoch. `file_mode`: the mode
    of all files of a new store, whatever the umask, by default 0o600 (directories: 0o700); 0o640 lets a group
    read. An existing store keeps its mode. `timeout`: how many seconds "rw" waits at most until a store that
    is open for writing elsewhere is closed; by default it does not wait.

    Raises StoreLockedError (with the pid of the process that has the lock), StorageError, ConfigError,
    InvalidArgumentError.
    """
    store = storage.open(
        path, mode, config=config, clock=clock, files=files, file_mode=file_mode, timeout=timeout
    )
    if store.mode == "rw":
        store.on_topic_deleted(forget_offsets)
        end_transactions(store)
    return store


def forget_offsets(store: Store, topic: str) -> None:
    """Remove a deleted topic's committed offsets, whether or not this process has used a group."""
    if topic == CONSUMER_OFFSETS or CONSUMER_OFFSETS in store.topics():
        from segstore.coordinator.offsets.group_offsets import forget_topic

        forget_topic(store, topic)


def end_transactions(store: Store) -> None:
    """Make the coordinator, which ends the open transactions. Where that fails it is tried again later; the
    store is open all the same.
    """
    try:
        writer = store._writer()
        info = writer.topics.get(TRANSACTION_STATE)
        # After a power cut partitions may have transactions of which `__transaction_state` knows nothing, and
        # later nobody asks all partitions.
        if info is None or not info.ours or not (writer.unstable() or writer.opened()):
            return
        from segstore.coordinator.transaction.coordinator import TransactionCoordinator

        shared(store, TransactionCoordinator)
    except (SegstoreError, OSError):
        log.exception("%r: transactions that were left open are not ended yet", store)
        store._context.scheduler.after(RETRY, _again(weakref.ref(store)))


def _again(ref: Callable[[], Store | None]) -> Callable[[], None]:
    def run() -> None:
        store = ref()
        if store is not None and not store._context.closed:
            end_transactions(store)

    return run
