"""`segstore.open`: opens a store, and completes or aborts the transactions that an earlier process left open.

On disk: writes through `storage.store` and `storage.shared`. Also writes through `coordinator.transaction` if
the store has an open transaction, or if it has had transactions and was not closed cleanly. A broker's
directory is not changed.
Threads: any.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from segstore.config import StoreConfig, arguments
from segstore.coordinator import shared as parts
from segstore.errors import InvalidArgumentError, InvalidTypeError, SegstoreError
from segstore.files import Files
from segstore.logger import Logger
from segstore.storage.context import Clock, os_errors, wall_clock
from segstore.storage.meta.topic_info import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from segstore.storage.store import store as storage
from segstore.storage.store.store import Store
from segstore.storage.store.writing_side import WritingSide

log = Logger("segstore")

# The pause before `end_transactions` is tried again, in seconds.
RETRY = 30.0
Sharing = bool | Literal["guest"]


def open(
    path: str | os.PathLike[str],
    mode: str = "rw",
    *,
    config: Mapping[str, Any] | None = None,
    clock: Clock = wall_clock,
    files: Files | None = None,
    file_mode: int | None = None,
    timeout: float | None = None,
    shared: Sharing = False,
) -> Store:
    """Open a store, which is a directory. With mode "rw" the directory is created if it is missing.

    With mode "rw" this process is the only writer. After a crash the store is recovered first
    (`Store.recovered` lists the changes). Transactions that were being committed are completed. Other open
    transactions are aborted, except those whose producer is a client of a server, because such a producer may
    continue its transaction. With mode "r" `open` takes no lock and changes nothing; the directory may be
    that of a Kafka broker.
    `config` has the store's settings by Kafka's names. `clock` is a function that returns ms since the epoch.
    `file_mode` is the mode of all files of a new store, regardless of the umask. It is 0o600 by default
    (0o700 for directories); 0o640 allows the files' group to read. The mode of an existing store does not
    change. `timeout` is the longest time, in seconds, to wait in mode "rw" while the store is already open
    for writing. By default `open` does not wait.

    If `shared` is True, several processes can write the store, if each of them passes `shared`. The first
    process is the host, an ordinary writer. Later processes are guests: they append and read by themselves,
    and send all other changes to the host. If the host exits, a guest becomes the host. If `shared` is
    "guest", this process never becomes the host, and `timeout` is its longest wait for a host. With mode "r"
    `shared` must be False; a reader can read a shared store too.

    Raises StoreLockedError, which names the pid of the process that has the lock, StorageError, ConfigError,
    InvalidArgumentError. If `shared` is not False, also raises HostUnavailableError, NotShareableError,
    UnsupportedFormatError.
    """
    if shared is not False:
        return _open_shared(path, _sharing(shared, mode), config, clock, files, file_mode, timeout)
    store = storage.open(
        path, mode, config=config, clock=clock, files=files, file_mode=file_mode, timeout=timeout
    )
    if store.mode == "rw":
        store.on_topic_deleted(forget_topic)
        end_transactions(store)
    return store


def _sharing(shared: object, mode: object) -> Sharing:
    """Return the argument `shared`, which must be True or "guest". Raises InvalidArgumentError,
    InvalidTypeError.
    """
    if not isinstance(shared, bool | str):
        raise InvalidTypeError(f'shared must be False, True or "guest", not {type(shared).__name__}')
    if shared is not True and shared != "guest":
        raise InvalidArgumentError(f'shared={shared!r}: must be False, True or "guest"')
    if mode == "r":
        raise InvalidArgumentError(
            f'shared={shared!r} with mode="r": a member writes; leave shared away to read a shared store'
        )
    arguments.one_of("mode", mode, ("rw",))
    return True if shared is True else "guest"


def _open_shared(
    path: str | os.PathLike[str],
    shared: Sharing,
    config: Mapping[str, Any] | None,
    clock: Clock,
    files: Files | None,
    file_mode: int | None,
    timeout: float | None,
) -> Store:
    """Open a store as one of the processes that share it."""
    from segstore.storage.store.shareable import check_shareable

    settings = StoreConfig.parse({} if config is None else config)
    seconds = arguments.seconds("timeout", timeout, 0.0)
    files = files or Files()
    with os_errors():
        check_shareable(files, arguments.path("path", path))
        # This module can be imported only on Linux.
        from segstore.storage.store.shared_opening import open_shared

        context = storage.open_context(path, settings, clock, files, file_mode)
        side = open_shared(context, settings, shared, seconds)
    store = Store(context, side)
    store.on_topic_deleted(forget_topic)
    side.on_host = _again(weakref.ref(store))
    if store.role == "host":
        end_transactions(store)
    return store


def forget_topic(store: Store, topic: str, topic_id: str) -> None:
    """Remove a deleted topic's committed offsets, and the states of its share partitions, from the internal
    topics.
    """
    forget_offsets(store, topic)
    forget_shares(store, topic, topic_id)


def forget_shares(store: Store, topic: str, topic_id: str) -> None:
    """Remove a deleted topic's partitions from share groups, and the states of its share partitions, even if
    this process has not used a share group.
    """
    if CONSUMER_OFFSETS in store.topics():
        from segstore.coordinator.group.coordinator import forget_share_partitions

        forget_share_partitions(store, topic)
    if topic == SHARE_GROUP_STATE or SHARE_GROUP_STATE in store.topics():
        from segstore.coordinator.share import state_log

        state_log.forget_topic(store, topic, topic_id)


def forget_offsets(store: Store, topic: str) -> None:
    """Remove a deleted topic's committed offsets, even if this process has not used a group."""
    if topic == CONSUMER_OFFSETS or CONSUMER_OFFSETS in store.topics():
        from segstore.coordinator.offsets.group_offsets import forget_topic

        forget_topic(store, topic)


def end_transactions(store: Store) -> None:
    """If there may be open transactions, create the transaction coordinator, which completes or aborts them.
    Before that, call `cut_shares`. If one of the two steps fails, log the error, and schedule a retry.
    """
    try:
        writer = store.writer()
        topics = writer.topics
        if SHARE_GROUP_STATE in topics:
            cut_shares(store, writer)
        info = topics.get(TRANSACTION_STATE)
        # After a power failure partitions may have open transactions that `__transaction_state` has lost.
        # Only the coordinator's constructor finds them, so it is needed after each unclean close.
        if info is None or not info.ours or not (writer.unstable() or writer.opened()):
            return
        from segstore.coordinator.transaction.coordinator import TransactionCoordinator

        parts.shared(store, TransactionCoordinator)
    except (SegstoreError, OSError):
        log.exception("%r: transactions that were left open are not ended yet", store)
        store.context.scheduler.after(RETRY, _again(weakref.ref(store)))


def cut_shares(store: Store, writer: WritingSide) -> None:
    """If the store was not closed cleanly, remove the offsets above the ends of recovered logs from the
    states of share partitions. A state that can't be changed now is changed when its share partition is
    loaded.
    """
    if not writer.opened():
        return
    from segstore.coordinator.share.cut_logs import CutLogs

    cut_logs = parts.shared(store, CutLogs)
    cut_logs.raise_group = partial(_raise_share_group, store)
    cut_logs.cut_all()


def _raise_share_group(store: Store, group: str, epoch: int) -> None:
    from segstore.coordinator.group.coordinator import GroupCoordinator

    parts.shared(store, GroupCoordinator).raise_share_epoch(group, epoch)


def _again(ref: Callable[[], Store | None]) -> Callable[[], None]:
    def run() -> None:
        store = ref()
        if store is not None and not store.context.closed:
            end_transactions(store)

    return run
