"""`families`: the counts of a server's listeners as metrics, each with its name in Kafka and its name in
Prometheus. Owns nothing on disk. Threads: any. `families` acquires no lock, and does not wait for an event
loop.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from segstore.protocol.error_codes import Code
from segstore.storage.store.stats import Family, Metric, MetricSample

from .apis import Api
from .network.request_metrics import BOUNDS, ApiMetrics, Counted

_OF_APIS: tuple[tuple[Metric, Callable[[ApiMetrics], float]], ...] = (
    (
        Metric("RequestsPerSec", "segstore_requests_total", "counter", "requests that were answered", ""),
        lambda row: sum(row.times),
    ),
    (
        Metric("RequestBytes", "segstore_request_bytes_total", "counter", "bytes of requests", "received"),
        lambda row: row.counts.received,
    ),
    (
        Metric("ResponseBytes", "segstore_response_bytes_total", "counter", "bytes of their answers", "sent"),
        lambda row: row.counts.sent,
    ),
    (
        Metric(
            "TotalTimeMs",
            "segstore_request_seconds_total",
            "counter",
            "seconds from when requests have come until the socket has their answers",
            "seconds",
        ),
        lambda row: row.counts.seconds,
    ),
)
"""(metric, function that returns its value) for metrics by API. Kafka's MBeans:
kafka.network:type=RequestMetrics,name=...,request=...
"""
_DURATION = Metric(
    "TotalTimeMs", "segstore_request_duration_seconds", "histogram", "requests by these seconds", "times"
)
_ERRORS = Metric("ErrorsPerSec", "segstore_request_errors_total", "counter", "error codes of answers", "")
_OF_LISTENERS: tuple[tuple[Metric, Callable[[Counted], float]], ...] = (
    (
        Metric("connection-count", "segstore_connections", "gauge", "connections that are open", ""),
        lambda each: each.connections,
    ),
    (
        Metric(
            "connection-creation-total", "segstore_connections_made_total", "counter", "connections taken", ""
        ),
        lambda each: each.metrics.made,
    ),
    (
        Metric(
            "",
            "segstore_connections_refused_total",
            "counter",
            "connections that were closed at once, by max_connections_per_ip or for want of descriptors",
            "",
        ),
        lambda each: each.metrics.refused,
    ),
    (
        Metric(
            "successful-authentication-total",
            "segstore_authentications_total",
            "counter",
            "clients that have authenticated by SASL, again too, or without SASL by a TLS handshake",
            "",
        ),
        lambda each: each.metrics.authenticated,
    ),
    (
        Metric(
            "failed-authentication-total",
            "segstore_authentications_failed_total",
            "counter",
            "TLS handshakes and authentications by SASL that have failed",
            "",
        ),
        lambda each: each.metrics.failed,
    ),
    (
        Metric(
            "",
            "segstore_malformed_requests_total",
            "counter",
            "requests that could not be read, or were not allowed yet, and have ended their connections",
            "",
        ),
        lambda each: each.metrics.malformed,
    ),
    (
        Metric("", "segstore_loop_age_seconds", "gauge", "seconds that the loop is busy since it slept", ""),
        lambda each: each.loop_age,
    ),
)
"""(metric, function that returns its value) for metrics by listener. Kafka's MBeans:
kafka.server:type=socket-server-metrics,listener=...
"""
_CERTIFICATE = Metric(
    "",
    "segstore_certificate_not_after_timestamp_seconds",
    "gauge",
    "when the certificate of a listener ends, in seconds since the epoch",
    "",
)
_UPTIME = Metric("", "segstore_server_uptime_seconds", "gauge", "seconds since the server began", "")


def families(listeners: Sequence[Counted]) -> list[Family]:
    """Return the metrics of requests by API, summed over all listeners, and the metrics of connections by
    listener.
    """
    rows = [item for each in listeners for item in list(each.metrics.rows.items())]
    apis = sorted({api for api, _ in rows})
    by_api = [(api, [row for other, row in rows if other is api]) for api in apis]
    found: list[Family] = [_of_apis(metric, value, by_api) for metric, value in _OF_APIS]
    found.append((_DURATION, ("request", "le"), [s for api, of in by_api for s in _durations(api, of)]))
    found.append((_ERRORS, ("request", "error"), [s for api, of in by_api for s in _errors(api, of)]))
    for metric, value_of in _OF_LISTENERS:
        samples = [MetricSample((each.metrics.listener,), value_of(each)) for each in listeners]
        found.append((metric, ("listener",), samples))
    ends = [(each.metrics.listener, each.certificate_end) for each in listeners]
    found.append(
        (_CERTIFICATE, ("listener",), [MetricSample((n,), end) for n, end in ends if end is not None])
    )
    began = min((each.metrics.since for each in listeners), default=time.monotonic())
    found.append((_UPTIME, (), [MetricSample((), time.monotonic() - began)]))
    return found


Rows = Sequence[tuple[Api, Sequence[ApiMetrics]]]


def _of_apis(metric: Metric, value: Callable[[ApiMetrics], float], by_api: Rows) -> Family:
    return metric, ("request",), [MetricSample((api.message,), sum(map(value, of))) for api, of in by_api]


def _durations(api: Api, rows: Iterable[ApiMetrics]) -> list[MetricSample]:
    """Return the samples of the histogram of an API's request times, in the order and with the suffixes that
    Prometheus requires.
    """
    rows = list(rows)
    counts = [*accumulate(map(sum, zip(*(row.times for row in rows), strict=True)))]
    bounds = [*map(repr, BOUNDS), "+Inf"]
    found = [
        MetricSample((api.message, bound), count, "_bucket")
        for bound, count in zip(bounds, counts, strict=True)
    ]
    total = sum(row.counts.seconds for row in rows)
    return [
        *found,
        MetricSample((api.message,), counts[-1], "_count"),
        MetricSample((api.message,), total, "_sum"),
    ]


def _errors(api: Api, rows: Iterable[ApiMetrics]) -> list[MetricSample]:
    counts: Counter[int] = Counter()
    for row in rows:
        counts.update(row.errors.copy())
    return [MetricSample((api.message, _name(code)), count) for code, count in sorted(counts.items())]


def _name(code: int) -> str:
    try:
        return Code(code).name
    except ValueError:
        return str(code)
