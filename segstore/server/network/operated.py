"""The HTTP endpoint of a server: metrics, health (whether the event loops respond), and readiness.

Owns nothing on disk. Threads: the endpoint's thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from segstore.operating.endpoint import HttpEndpoint, attached
from segstore.operating.families import store_families
from segstore.operating.health import store_unready
from segstore.operating.operated import LoopHeartbeat, Operated, Reasons
from segstore.storage.store.stats import Family, Metric, MetricSample
from segstore.storage.store.store import Store

from .service import Service


class CountingServer(Protocol):
    """The metrics of a server."""

    def metrics(self) -> Mapping[str, float]: ...
    def families(self) -> list[Family]: ...


def _counter(name: str, prometheus: str, doc: str) -> Metric:
    return Metric(name, f"segstore_share_{prometheus}_total", "counter", doc, "")


def _gauge(name: str, prometheus: str, doc: str) -> Metric:
    return Metric(name, f"segstore_share_{prometheus}", "gauge", doc, "")


_FETCH, _ACKNOWLEDGE = "ShareFetchRequestsPerSec", "ShareAcknowledgementRequestsPerSec"
METRICS = (
    _counter(f"Total{_FETCH}", "fetch_requests", "ShareFetch requests"),
    _counter(f"Failed{_FETCH}", "fetch_request_errors", "ShareFetch requests with an error"),
    _counter(f"Total{_ACKNOWLEDGE}", "acknowledge_requests", "ShareAcknowledge requests"),
    _counter(f"Failed{_ACKNOWLEDGE}", "acknowledge_request_errors", "those with an error"),
    _counter("ExpiresPerSec", "fetch_expirations", "ShareFetch requests that ended without records"),
    _gauge("ShareSessionsCount", "sessions", "share sessions"),
    _gauge("SharePartitionsCount", "session_partitions", "partitions in share sessions"),
)


def families_of(server: CountingServer) -> list[Family]:
    """Return the metric families of a server and of its share groups."""
    counted = server.metrics()
    of_shares: list[Family] = [
        (each, (), [MetricSample((), counted[each.name])]) for each in METRICS if each.name in counted
    ]
    return [*server.families(), *of_shares]


def begin_http(
    address: str, store: Store, server: CountingServer, services: Sequence[Service]
) -> HttpEndpoint:
    """Open the HTTP endpoint of a server. The endpoint is closed when the server or the store is closed.
    Raises the errors of `HttpEndpoint`, and StoreClosedError.
    """
    operated = Operated(
        known=lambda: families_of(server),
        gathered=lambda: store_families(store),
        unready=lambda: [*_ending(services), *store_unready(store)],
        unhealthy=lambda: _ended(services),
        heartbeats=[LoopHeartbeat(service.soon) for service in services],
    )
    return attached(address, operated, store)


def _ending(services: Sequence[Service]) -> Reasons:
    return ["it takes no more connections"] if any(each.is_ending for each in services) else []


def _ended(services: Sequence[Service]) -> Reasons:
    return ["the server has ended"] if any(each.has_ended for each in services) else []
