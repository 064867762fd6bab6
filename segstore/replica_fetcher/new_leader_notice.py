"""`Announcer`: notifies the old primary that a promoted standby leads in its place. The announcer tries until
the old primary has accepted the notice.

On disk is `.segstore/promotion`. Threads: the announcer has its own thread. Any thread may call `announce`
and `close`.
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
"""Seconds from one try to reach the old primary to the next."""


class Announcer:
    """Notifies the old primary of a store's last promotion. Each store has one `Announcer`."""

    def __init__(self, store: Store) -> None:
        self._context = store.context
        self._closing, self._lock = Latch(), Mutex()
        self._settings: WireConfig | None = None
        self._thread: Background | None = None
        self._is_begun = False
        self._cluster: Cluster | None = None
        self._error = ""

    def announce(self, settings: WireConfig) -> None:
        """If this store was promoted and its old primary was not notified yet, start the thread, which
        notifies the old primary. `settings` are client settings for the connection. If the method was called
        before, only set `settings`. Raises CorruptCheckpointError, StorageError, and IllegalStateError if no
        thread can be started.
        """
        with self._lock:
            self._settings = settings
            if not self._is_begun and not self._closing.is_open:
                self._begin()
                # This line comes last, so that after an error or an interrupt the next call begins again.
                self._is_begun = True

    def _begin(self) -> None:
        if self._thread is not None and self._thread.settle():
            return
        with os_errors():
            promotion = PROMOTION.read(self._context.files, self._context.root)
        if promotion is not None and not promotion.told:
            self._thread = Background(lambda: self._run(promotion), "segstore-announcer")
            self._thread.start()

    def close(self, seconds: float = 30.0) -> None:
        """Stop the thread, and wait for its end for at most `seconds`."""
        self._closing.open()
        if (cluster := self._cluster) is not None:
            cluster.abort()
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self, promotion: Promotion) -> None:
        while not self._is_over() and not self._notify(promotion):
            self._closing.wait(_PAUSE)

    def _is_over(self) -> bool:
        """Return whether the store is closing, or was demoted after the promotion."""
        return self._closing.is_open or bool(self._context.demoted)

    def _notify(self, held: Promotion) -> bool:
        assert self._settings is not None
        cluster = None
        try:
            cluster = self._cluster = Cluster(held.source, self._settings)
            PrimaryClient(cluster, held.cluster_id, held.directory_id, "").announce(held.leader_epoch)
            with self._context.reserve:
                PROMOTION.write(self._context.files, self._context.root, replace(held, told=True))
        except (SegstoreError, OSError) as error:
            self._warn_once(f"the old primary at {held.source} is not told yet: {error}")
            return False
        finally:
            if cluster is not None:
                cluster.close()
        log.warning("the old primary at %s knows that it leads no more", held.source)
        return True

    def _warn_once(self, error: str) -> None:
        if error != self._error and not self._closing.is_open:
            log.warning("%s", error)
        self._error = error
