"""`segstore.open`: opens a store, and completes or aborts the transactions that an earlier process left open.

On disk: through `storage.store` and `storage.shared`, and through `coordinator.transaction` if the store has
an open transaction, or has had transactions and was not closed cleanly. A broker's directory is not changed.
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

RETRY = 30.0  # seconds
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
    """Open a store, which is a directory; mode "rw" makes the directory if it is missing.

    "rw": this process is the only writer. After a crash the store is recovered first (`Store.recovered` lists
    the changes). Transactions that were being committed are completed. Other open transactions are aborted,
    unless their producer is a client of a server, because such a producer may go on. "r": takes no lock and
    changes nothing; the directory may be a Kafka broker's.
    `config`: the store's settings by Kafka's names; `clock` returns ms since the epoch. `file_mode`: the mode
    of all files of a new store, regardless of the umask, by default 0o600 (directories: 0o700); 0o640 lets a
    group read. An existing store keeps its mode. `timeout`: the longest wait of "rw", in seconds, for a store
    that is open for writing elsewhere; by default `open` does not wait.

    `shared`: True lets several processes write the store, if each of them passes `shared`. The first process
    is the host, an ordinary writer; later processes are guests, which append and read by themselves, and
    leave all other changes to the host. If the host exits, a guest becomes the host. "guest": this process
    never becomes the host; `timeout` is its longest wait for a host. With "r" `shared` must be False, because
    a reader can read a shared store without it.

    Raises StoreLockedError (with the pid of the process that has the lock), StorageError, ConfigError,
    InvalidArgumentError; with `shared` HostUnavailableError, NotShareableError, UnsupportedFormatError.
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
        from segstore.storage.store.shared_opening import open_shared  # a module for Linux only

        context = storage.open_context(path, settings, clock, files, file_mode)
        side = open_shared(context, settings, shared, seconds)
    store = Store(context, side)
    store.on_topic_deleted(forget_topic)
    side.on_host = _again(weakref.ref(store))
    if store.role == "host":
        end_transactions(store)
    return store


def forget_topic(store: Store, topic: str, topic_id: str) -> None:
    """Remove the committed offsets and share states of a deleted topic from the internal topics."""
    forget_offsets(store, topic)
    forget_shares(store, topic, topic_id)


def forget_shares(store: Store, topic: str, topic_id: str) -> None:
    """Remove a deleted topic's partitions from share groups, with their states, also if no share group was
    used in this process.
    """
    if CONSUMER_OFFSETS in store.topics():
        from segstore.coordinator.group.coordinator import forget_share_partitions

        forget_share_partitions(store, topic)
    if topic == SHARE_GROUP_STATE or SHARE_GROUP_STATE in store.topics():
        from segstore.coordinator.share import state_log

        state_log.forget_topic(store, topic, topic_id)


def forget_offsets(store: Store, topic: str) -> None:
    """Remove a deleted topic's committed offsets, also if no group was used in this process."""
    if topic == CONSUMER_OFFSETS or CONSUMER_OFFSETS in store.topics():
        from segstore.coordinator.offsets.group_offsets import forget_topic

        forget_topic(store, topic)


def end_transactions(store: Store) -> None:
    """If there may be open transactions, create the transaction coordinator, which completes or aborts them.
    Before that, if a crash has cut the ends of logs, cut the states of the logs' share partitions. If a step
    fails, log the error, and schedule a retry.
    """
    try:
        writer = store.writer()
        topics = writer.topics
        if SHARE_GROUP_STATE in topics:
            cut_shares(store, writer)
        info = topics.get(TRANSACTION_STATE)
        # After a power cut partitions may have transactions that `__transaction_state` has lost. Only the
        # coordinator's constructor finds such transactions, so each unclean close needs a coordinator.
        if info is None or not info.ours or not (writer.unstable() or writer.opened()):
            return
        from segstore.coordinator.transaction.coordinator import TransactionCoordinator

        parts.shared(store, TransactionCoordinator)
    except (SegstoreError, OSError):
        log.exception("%r: transactions that were left open are not ended yet", store)
        store.context.scheduler.after(RETRY, _again(weakref.ref(store)))


def cut_shares(store: Store, writer: WritingSide) -> None:
    """Cut the states of share partitions whose logs lost their ends in a crash. A state that can't be cut now
    is cut when its share partition is loaded.
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
