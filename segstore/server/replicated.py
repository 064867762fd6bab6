"""Recognizes replicated stores. Threads: any; no state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from segstore.replication.store import ReplicatedStore


def replicated(store: Store) -> ReplicatedStore | None:
    """Return the store if it is a ReplicatedStore, else None. Import the code of replication only if the
    store is no plain `Store`.
    """
    if type(store) is Store:
        return None
    from segstore.replication.store import ReplicatedStore

    return store if isinstance(store, ReplicatedStore) else None
