"""A promoted store that is served tells the primary that it has replaced. On disk: `.segstore/promotion`.
Threads: any.
"""

from __future__ import annotations

from segstore.coordinator.shared import shared
from segstore.storage.context import os_errors
from segstore.storage.meta.promotion import PROMOTION
from segstore.storage.store.store import Store


def announce_promotion(store: Store) -> None:
    """Begin to tell the old primary, if there is one that has not been told. Raises CorruptCheckpointError,
    StorageError.
    """
    if store.mode != "rw":
        return
    with os_errors():
        held = PROMOTION.read(store._context.files, store.path)
    if held is not None and not held.told:
        from segstore.following.announcing import Announcer

        shared(store, Announcer)
