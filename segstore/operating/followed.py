"""The HTTP endpoint of a standby or a mirror, with metrics of the connection to the source, and of the lag.

Nothing is on disk. Threads: the endpoint's thread.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from segstore.errors import StoreClosedError
from segstore.operating.endpoint import attached
from segstore.operating.families import gauge, store_families
from segstore.operating.health import store_unready
from segstore.operating.operated import Operated, Reasons
from segstore.replica_fetcher.running import Following
from segstore.storage.store.readiness import named
from segstore.storage.store.stats import Family


def begin_http(address: str, running: Following[Any], most_ms: int | None) -> str:
    """Begin to serve the metrics and health of a standby or a mirror over HTTP, until its store is closed.
    Return the address, "HOST:PORT".

    /readyz reports too much lag if a partition's lag is more than `most_ms`, in ms. If `most_ms` is None, any
    lag is allowed. Raises the errors of `HttpEndpoint`, and StoreClosedError.
    """
    operated = Operated(
        known=lambda: _families(running),
        gathered=lambda: store_families(running.store),
        unready=lambda: [*_unconnected(running), *_behind(running, most_ms), *store_unready(running.store)],
        unhealthy=lambda: _failed(running),
    )
    return str(attached(address, operated, running.store).address)


def _families(running: Following[Any]) -> list[Family]:
    kind = running.store.kind
    return [
        gauge(f"segstore_{kind}_connected", "1 if the source has answered", float(_is_connected(running))),
        gauge(f"segstore_{kind}_problems", "topics that can't be followed", float(len(running.problems))),
    ]


def _is_connected(running: Following[Any]) -> bool:
    return running.error is None and running._control.rounds > 0


def _failed(running: Following[Any]) -> Reasons:
    failure = running._failure
    return [] if failure is None else [f"it follows no more: {failure}"]


def _unconnected(running: Following[Any]) -> Reasons:
    control = running._control
    if control.done.is_open:
        return [] if control.failure is not None else ["it follows no more"]
    if control.error is not None:
        return [f"{control.role.source} is not reached: {control.error}"]
    return [] if control.rounds else [f"{control.role.source} has not answered yet"]


def _behind(running: Following[Any], most_ms: int | None) -> Reasons:
    """Return one line that lists the partitions with too much lag, and the partitions that have not reached
    the high watermark of the source's first answer. Return no line if there are no such partitions.
    """
    if most_ms is None:
        return []
    found = []
    for each in running._control.fetchers.logs.values():
        with suppress(StoreClosedError):  # the topic has just been deleted
            source, end = each.source, each.replica.log_end_offset
            if not source.has_reached_target(end) or source.lag(end).ms > most_ms:
                found.append(f"{each.topic}-{each.partition}")
    return named(f"more than {most_ms} ms behind, or not caught up yet", sorted(found))
