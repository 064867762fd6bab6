"""Whether a store is a replicated one. Threads: no state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from segstore.replication.store import ReplicatedStore


def replicated(store: Store) -> ReplicatedStore | None:
    """Return a store that is replicated, None for any other one, for which replication is not imported."""
    if type(store) is Store:
        return None
    from segstore.replication.store import ReplicatedStore

    return store if isinstance(store, ReplicatedStore) else None
