"""The lease of a served store. The store leads its partitions only while it has the lease. On disk: the
leader epochs of the store's logs. Threads: any.
"""

from __future__ import annotations

from segstore.coordinator.shared import existing, shared
from segstore.errors import InvalidArgumentError, InvalidTypeError
from segstore.server.settings import ServerConfig
from segstore.storage.store.leadership import Leadership
from segstore.storage.store.lease import Lease
from segstore.storage.store.store import Store
from segstore.storage.store.writer import StoreWriter


def _leadership(store: Store) -> Leadership:
    side = store.engine
    if not isinstance(side, StoreWriter) or not side.may_have_standby:
        raise InvalidArgumentError(
            f"lease: {store.path} does not lead by itself: it must be a store without replicas, and with mode"
            ' "rw"'
        )
    return Leadership(side.primary, store.context.scheduler)


def hold_lease(store: Store, lease: Lease, config: ServerConfig) -> None:
    """From now on let the store lead only while `lease()` returns a token. Raises InvalidTypeError,
    InvalidArgumentError, StoreClosedError, StorageError, and IllegalStateError if no thread can be started.
    """
    if not callable(lease):
        raise InvalidTypeError(f"lease must be callable, not {type(lease).__name__}")
    interval, deadline = config.lease_interval_ms / 1000, config.lease_renew_deadline_ms / 1000
    shared(store, _leadership).begin(lease, interval, deadline)


def lease_error(store: Store) -> Exception | None:
    """Return the last error that `lease()` raised or that the check of its token found; None if there was no
    error. It is no error if another server has the lease.
    """
    held = existing(store, _leadership)
    return None if held is None else held.error
