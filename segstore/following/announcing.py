"""`Announcer`: tells the primary that a promoted store has replaced, once it answers again, that it leads no
more. On disk: `.segstore/promotion`. Threads: its own; `close` may be called by any.
"""

from __future__ import annotations

from dataclasses import replace

from segstore.errors import SegstoreError
from segstore.following.primary import Primary
from segstore.logger import Logger
from segstore.storage.meta.promotion import PROMOTION
from segstore.storage.store.store import Store
from segstore.threads import Background, Latch
from segstore.wire.cluster import Cluster
from segstore.wire.settings import WireConfig

log = Logger("segstore")
_PAUSE = 3.0
"""Seconds between two tries to reach the old primary."""


class Announcer:
    """Announces the last promotion of a store, where the old primary has not been told; else does nothing."""

    def __init__(self, store: Store) -> None:
        context = self._context = store._context
        self._closing, self._ended = Latch(), Latch()
        self._cluster: Cluster | None = None
        self._promotion = PROMOTION.read(context.files, context.root) if context.writable else None
        if self._promotion is not None and not self._promotion.told:
            Background(self._run, "segstore-announcer").start()
        else:
            self._ended.open()

    def close(self, seconds: float = 30.0) -> None:
        """End the thread, and wait."""
        self._closing.open()
        if (cluster := self._cluster) is not None:
            cluster.abort()
        self._ended.wait(seconds)

    def _run(self) -> None:
        try:
            while not self._closing.is_open and not self._is_told():
                self._closing.wait(_PAUSE)
        finally:
            self._ended.open()

    def _is_told(self) -> bool:
        held = self._promotion
        assert held is not None
        cluster = self._cluster = Cluster(held.source, WireConfig.parse({}))
        try:
            Primary(cluster, held.cluster_id, held.directory_id, "").announce(held.leader_epoch)
            PROMOTION.write(self._context.files, self._context.root, replace(held, told=True))
        except (SegstoreError, OSError) as error:
            log.info("the old primary at %s is not told yet: %s", held.source, error)
            return False
        finally:
            cluster.close()
        log.warning("the old primary at %s knows that it leads no more", held.source)
        return True
