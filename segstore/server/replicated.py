"""Recognizes replicated stores. Threads: any; no state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from segstore.replication.store import ReplicatedStore


def replicated(store: Store) -> ReplicatedStore | None:
    """Return the store as a ReplicatedStore, None if it is a plain store. The code of replication is imported
    only if needed.
    """
    if type(store) is Store:
        return None
    from segstore.replication.store import ReplicatedStore

    return store if isinstance(store, ReplicatedStore) else None
