"""`segstore.open_replicated`: opens a replicated store, ends the transactions that were left open, and adopts
what is staged.

On disk: through `replication`, and as `segstore.open` does. Threads: any.
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
    """Open one store over several directories, each partition of which may have a replica in several of them:
    the first path is directory 0, and so on. They are made where they are missing at the first time. This
    process becomes the only writer of all of them.

    A majority of the directories, and of the `witness`, which holds the metadata only, must be there; what is
    missing then stays offline. With `adopt`, one of the directories may be a store without replicas when the
    replicated one is opened for the first time: each of its partitions keeps its bytes, offsets and settings,
    and has one replica, there; `reassign` adds others. `unreplicate` is the way back. `config` has settings
    by Kafka's names, of the store and of its replicas; `clock`, `file_mode` and `timeout` are as in `open`.
    Transactions are ended as in `open`. docs/replication.md says what an acknowledgement is worth.

    By default followers fetch in threads of their directories, so that a disk that hangs holds up nobody for
    longer than it takes to put its replicas out. With `inline` an append writes all replicas by itself, while
    all are in sync: it is many times faster, but a disk that hangs holds up the appends to all partitions
    that have a replica there, and the directories that lead them, until it answers.

    Raises QuorumLostError without a majority; StaleDirectoryError for a directory of another store, or in the
    place of another; StoreLockedError, StorageError, ConfigError, InvalidArgumentError, InvalidTypeError.
    """
    given = given_paths(paths, witness)  # before the wait, during which the current directory may change
    opened = partial(
        opening.open_replicated,
        given if witness is None else given[:-1],
        witness=None if witness is None else given[-1],
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
