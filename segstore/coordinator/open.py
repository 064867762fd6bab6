"""`open`, as applications call it: a store, and an end to what transactions a process that is gone left open.

On disk: through `storage.store` and, where a transaction is open in a store that has had transactions, or the
store was not closed, `coordinator.transaction`. A broker's directory is not touched.
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
from segstore.storage.store import store as storage
from segstore.storage.store.store import Store

log = Logger("segstore")

TRANSACTIONS = "__transaction_state"
OFFSETS = "__consumer_offsets"
RETRY = 30.0  # seconds


def open(
    path: str | os.PathLike[str],
    mode: str = "rw",
    *,
    config: Mapping[str, Any] | None = None,
    clock: Clock = wall_clock,
    files: Files | None = None,
    file_mode: int | None = None,
) -> Store:
    """Open a store, a directory that is made where it is missing and `mode` is "rw".

    "rw": this process is the one writer; what a crash left is recovered first (`Store.recovered` says what
    was done), transactions that were being committed are completed, all others aborted. "r": takes no lock
    and changes nothing; the directory may be a Kafka broker's. `config`: settings of the store by Kafka's
    names; `clock` gives ms since the epoch. `file_mode`: of all files that are made in a new store, whatever
    the umask, 0o600 by default (directories: 0o700); 0o640 lets a group read. A store that is there keeps its
    own.

    StoreLockedError (with the holder's pid), StorageError, ConfigError, InvalidArgumentError.
    """
    store = storage.open(path, mode, config=config, clock=clock, files=files, file_mode=file_mode)
    if store.mode == "rw":
        store.on_topic_deleted(forget_offsets)
        _end_transactions(store)
    return store


def forget_offsets(store: Store, topic: str) -> None:
    """A deleted topic's committed offsets go with it, whether or not this process has used a group."""
    if topic == OFFSETS or OFFSETS in store.topics():
        from segstore.coordinator.offsets.group_offsets import forget_topic

        forget_topic(store, topic)


def _end_transactions(store: Store) -> None:
    """Making the coordinator ends them. What fails is tried again: the store is open all the same."""
    try:
        info = store.topics().get(TRANSACTIONS)
        writer = store._writer()
        # After a power cut the partitions may know more than it does, and nobody asks all of them later.
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
            _end_transactions(store)

    return run
