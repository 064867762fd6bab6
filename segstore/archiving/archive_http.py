"""The HTTP endpoint of a running archive: it serves the archive's metrics (such as the lag) and health.

Nothing is on disk. Threads: those of the endpoint.
"""

from __future__ import annotations

from segstore.archiving.archive import Archive
from segstore.operating.endpoint import attached
from segstore.operating.families import store_families
from segstore.operating.health import store_unready
from segstore.operating.operated import Operated, Reasons


def begin_http(address: str, running: Archive) -> str:
    """Begin to serve an archive's metrics and health at an address, until the archive is closed. Return
    "HOST:PORT". The endpoint reports ready if the last `Archiver.tick` has archived all partitions. Raises
    the errors of `HttpEndpoint`, and StoreClosedError.
    """
    store = running._store
    operated = Operated(
        known=running.metrics,
        gathered=lambda: store_families(store),
        unready=lambda: [*_behind(running), *store_unready(store)],
        unhealthy=lambda: _failed(running),
    )
    return str(attached(address, operated, store).address)


def _failed(running: Archive) -> Reasons:
    failure = running._failure
    return [] if failure is None else [f"it archives no more: {failure}"]


def _behind(running: Archive) -> Reasons:
    if running.error is not None:
        return [f"{running.uri} lags behind: {running.error}"]
    return [] if running.total_lag().ms >= 0 else [f"{running.uri} has not answered yet"]
