"""`Announcer`: tells the primary that a promoted store has replaced, once it answers again, that it leads no
more. On disk: `.segstore/promotion`. Threads: its own; `announce` and `close` may be called by any.
"""

from __future__ import annotations

from dataclasses import replace

from segstore.errors import SegstoreError
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.replica_fetcher.primary import PrimaryClient
from segstore.storage.context import os_errors
from segstore.storage.meta.promotion import PROMOTION, Promotion
from segstore.storage.store.store import Store
from segstore.threads import Background, Latch
from segstore.wire.cluster import Cluster
from segstore.wire.settings import WireConfig

log = Logger("segstore")
_PAUSE = 3.0
"""Seconds between two tries to reach the old primary."""


class Announcer:
    """Announces the last promotion of a store, once it is asked to; one for each store."""

    def __init__(self, store: Store) -> None:
        self._context = store.context
        self._closing, self._ended = Latch(), Latch()
        self._ended.open()
        self._lock = Mutex()
        self._settings: WireConfig | None = None
        self._cluster: Cluster | None = None
        self._error = ""

    def announce(self, settings: WireConfig) -> None:
        """Begin to tell the old primary, if there is one that has not been told; where that has begun, go on
        with these settings of the client. Raises CorruptCheckpointError, StorageError.
        """
        with self._lock:
            has_begun, self._settings = self._settings is not None, settings
            if has_begun or self._closing.is_open:
                return
            with os_errors():
                promotion = PROMOTION.read(self._context.files, self._context.root)
            if promotion is not None and not promotion.told:
                self._ended = Latch()
                Background(lambda: self._run(promotion), "segstore-announcer").start()

    def close(self, seconds: float = 30.0) -> None:
        """End the thread, and wait."""
        self._closing.open()
        if (cluster := self._cluster) is not None:
            cluster.abort()
        self._ended.wait(seconds)

    def _run(self, promotion: Promotion) -> None:
        try:
            while not self._is_over() and not self._is_told(promotion):
                self._closing.wait(_PAUSE)
        finally:
            self._ended.open()

    def _is_over(self) -> bool:
        """Return whether the store is about to close, or was demoted since: then it leads no more itself."""
        return self._closing.is_open or bool(self._context.demoted)

    def _is_told(self, held: Promotion) -> bool:
        assert self._settings is not None
        cluster = None
        try:
            cluster = self._cluster = Cluster(held.source, self._settings)
            PrimaryClient(cluster, held.cluster_id, held.directory_id, "").announce(held.leader_epoch)
            with self._context.reserve:
                PROMOTION.write(self._context.files, self._context.root, replace(held, told=True))
        except (SegstoreError, OSError) as error:
            self._tell(f"the old primary at {held.source} is not told yet: {error}")
            return False
        finally:
            if cluster is not None:
                cluster.close()
        log.warning("the old primary at %s knows that it leads no more", held.source)
        return True

    def _tell(self, error: str) -> None:
        if error != self._error and not self._closing.is_open:
            log.warning("%s", error)
        self._error = error
