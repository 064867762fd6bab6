"""`segstore.open_replicated`: opens a replicated store, completes or aborts the transactions that an earlier
process left open, and starts to append the batches that other processes stage in the store's inboxes.

On disk: writes the replicas and the metadata, through `replication`; writes groups, transactions and inboxes
as `segstore.open` does. Threads: any.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from segstore.config import arguments
from segstore.coordinator.inboxes.inboxes import serve_inboxes
from segstore.coordinator.open import end_transactions, forget_topic
from segstore.files import Files
from segstore.replication import opening
from segstore.replication.metadata.voters import given_paths
from segstore.replication.store import ReplicatedStore
from segstore.storage.context import Clock, wall_clock
from segstore.storage.store.waiting import until_unlocked


def open_replicated(
    paths: Sequence[str | os.PathLike[str]],
    *,
    witness: str | os.PathLike[str] | None = None,
    adopt: bool = False,
    config: Mapping[str, Any] | None = None,
    clock: Clock = wall_clock,
    files: Files | None = None,
    file_mode: int | None = None,
    inline: bool = False,
    timeout: float | None = None,
) -> ReplicatedStore:
    """Open one store over several directories. Each partition has one or more replicas, all in different
    directories. The first of `paths` is directory 0, and so on. The first open creates missing directories.
    This process becomes the only writer of all directories.

    `witness` is one more directory, which has only the metadata. A majority of all directories, including the
    witness, must be available. Directories that are not available are offline. If `adopt` is True, one of the
    directories may be a store without replicas at the first open: its partitions keep their bytes, offsets
    and settings, and have one replica, in that directory; `reassign` adds replicas. `unreplicate` makes the
    store a store without replicas again. `config` has settings of the store and of its replicas, by Kafka's
    names. `clock`, `file_mode` and `timeout` are as in `open`. Open transactions are completed or aborted as
    in `open`. docs/replication.md describes the guarantees of an acknowledgement.

    By default followers fetch in the threads of their directories, so a disk that hangs delays appends only
    until its replicas are removed from the in-sync replicas. If `inline` is True, an append writes all
    replicas itself while all of them are in sync. Such an append is many times faster. But while a disk
    hangs, the appends to all partitions that have a replica on it wait, and perhaps also the threads of the
    directories that lead these partitions.

    Raises StoreLockedError, StorageError, ConfigError, InvalidArgumentError, InvalidTypeError,
    QuorumLostError if there is no majority, and StaleDirectoryError if a directory belongs to another store,
    or if a directory is in the place of another.
    """
    # Paths are made absolute now, because the current directory may change.
    all_paths = given_paths(paths, witness)
    opened = partial(
        opening.open_replicated,
        all_paths if witness is None else all_paths[:-1],
        witness=None if witness is None else all_paths[-1],
        adopt=adopt,
        config=config,
        clock=clock,
        files=files,
        file_mode=file_mode,
        inline=inline,
    )
    store = until_unlocked(opened, arguments.seconds("timeout", timeout, 0.0))
    store.on_topic_deleted(forget_topic)
    end_transactions(store)
    serve_inboxes(store)
    return store
