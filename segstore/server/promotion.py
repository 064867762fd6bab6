"""When a promoted store is served, notifies the store's old primary of the promotion.
On disk: `.segstore/promotion`. Threads: any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from segstore import names
from segstore.coordinator.shared import shared
from segstore.storage.context import os_errors
from segstore.storage.store.store import Store


def announce_promotion(store: Store, settings: Mapping[str, Any] | None) -> None:
    """If the store was promoted, and its old primary was not notified yet, begin to notify the old primary.
    `settings` are client settings for the connection to the old primary. Raises ConfigError,
    CorruptCheckpointError, StorageError, and IllegalStateError if no thread can be started.
    """
    context = store.context
    if settings is None and (store.mode != "rw" or not _is_there(store)):
        # This returns before the imports below, because they take time.
        return
    from segstore.replica_fetcher.new_leader_notice import Announcer
    from segstore.wire.settings import WireConfig

    parsed = WireConfig.parse(settings or {})
    if context.writable and _is_there(store):
        shared(store, Announcer).announce(parsed)


def _is_there(store: Store) -> bool:
    with os_errors():
        return store.context.files.exists(names.below(store.path, f"{names.OURS}/{names.PROMOTION}"))
