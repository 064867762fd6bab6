"""The pages of an HTTP endpoint: /metrics, /healthz and /readyz. Nothing is on disk.

Threads: only the thread of the endpoint's event loop; `MetricsSnapshots` has a thread of its own.
"""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from segstore.operating.exposition import Encoding, encoding_for, merged, process_registry
from segstore.operating.families import build_info, counter, gauge
from segstore.operating.health import unhealthy, unready
from segstore.operating.http_request import HttpAnswer, HttpRequest, text_answer
from segstore.operating.operated import Operated, Reasons
from segstore.operating.snapshot import MetricsSnapshots
from segstore.storage.store.stats import Family

_PATIENCE = 1.0
"""How long a scrape waits for a new snapshot, in seconds. If there is no new snapshot after this time, the
last snapshot is answered.
"""
_FIRST_PATIENCE = 8.0
"""As long as there is no snapshot, scrapes wait for the first snapshot until this number of seconds after the
first scrape. (Prometheus waits 10 seconds for an answer.)
"""
_SAME = 1.0
"""How long the text of all metrics is reused, in seconds."""
_METHODS = ("GET", "HEAD")


class Pages:
    """Answers HTTP requests. `connections()` returns the number of open connections."""

    def __init__(self, operated: Operated, connections: Callable[[], int]) -> None:
        self._operated, self._connections = operated, connections
        self._snapshots = MetricsSnapshots(operated.gathered)
        self._process = process_registry()
        self._begun = time.monotonic()
        self._waits: dict[str, asyncio.Future[None]] = {}
        self._made: dict[tuple[str, bool], tuple[float, bytes]] = {}
        self._scrapes = 0
        self._first_until = 0.0
        self._paths: dict[str, Callable[[HttpRequest], Awaitable[HttpAnswer]]] = {
            "/metrics": self._metrics,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
        }

    def start(self) -> None:
        """Start the thread that makes snapshots. Raises IllegalStateError."""
        self._snapshots.start()

    def close(self) -> None:
        """Stop the thread that makes snapshots, but do not wait until it has stopped."""
        self._snapshots.close()

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Return the answer to a request."""
        page = self._paths.get(request.path)
        if page is None:
            return text_answer(HTTPStatus.NOT_FOUND, f"there are {', '.join(self._paths)}")
        if request.method not in _METHODS:
            return text_answer(HTTPStatus.METHOD_NOT_ALLOWED, "GET or HEAD", Allow=", ".join(_METHODS))
        return await page(request)

    # --- health -----------------------------------------------------------------------------------

    async def _healthz(self, _request: HttpRequest) -> HttpAnswer:
        return _judged(unhealthy(self._operated))

    async def _readyz(self, _request: HttpRequest) -> HttpAnswer:
        return _judged(unready(self._operated))

    # --- metrics ----------------------------------------------------------------------------------

    async def _metrics(self, request: HttpRequest) -> HttpAnswer:
        self._scrapes += 1
        self._first_until = self._first_until or time.monotonic() + _FIRST_PATIENCE
        encoding = encoding_for(request.headers.get("accept", ""))
        if not self._snapshots.is_fresh(encoding):
            await self._snapshot(encoding)
        packed = request.takes_gzip
        headers = {"Vary": "Accept, Accept-Encoding", **({"Content-Encoding": "gzip"} if packed else {})}
        return HttpAnswer(HTTPStatus.OK, self._text(encoding, packed), encoding.content_type, headers)

    async def _snapshot(self, encoding: Encoding) -> None:
        """Wait until there is a new snapshot, for at most the time that `_patience` returns. Concurrent
        scrapes wait for the same snapshot.
        """
        key, loop = encoding.content_type, asyncio.get_running_loop()
        waited = self._waits.get(key)
        if waited is None:
            waited = self._waits[key] = loop.create_future()
            self._snapshots.ask(encoding, lambda: loop.call_soon_threadsafe(self._arrived, key))
        await asyncio.wait([waited], timeout=self._patience(encoding))

    def _patience(self, encoding: Encoding) -> float:
        """Return the longest time that a scrape waits for a snapshot, in seconds."""
        if self._snapshots.text(encoding):
            return _PATIENCE
        return max(_PATIENCE, self._first_until - time.monotonic())

    def _arrived(self, key: str) -> None:
        self._waits.pop(key).set_result(None)
        self._made.clear()

    def _text(self, encoding: Encoding, packed: bool) -> bytes:
        """Return the text of all metrics. It is made again only if the last text is older than `_SAME`
        seconds.
        """
        at, body = self._made.get((encoding.content_type, packed), (0.0, b""))
        now = time.monotonic()
        if not body or now - at >= _SAME:
            body = self._joined(encoding)
            body = gzip.compress(body, compresslevel=1) if packed else body
            self._made[encoding.content_type, packed] = now, body
        return body

    def _joined(self, encoding: Encoding) -> bytes:
        known = encoding.text(merged(self._operated.known(), self._own()))
        return encoding.joined([known, encoding.of_process(self._process), self._snapshots.text(encoding)])

    def _own(self) -> list[Family]:
        held, ill, idle = self._snapshots, unhealthy(self._operated), unready(self._operated)
        return [
            build_info(),
            gauge("segstore_uptime_seconds", "seconds since it began", time.monotonic() - self._begun),
            gauge("segstore_healthy", "1 if /healthz answers 200", float(not ill)),
            gauge("segstore_ready", "1 if /readyz answers 200", float(not idle)),
            gauge("segstore_snapshot_age_seconds", "age of the metrics read from the store", held.age),
            counter("segstore_snapshot_failures_total", "times that these could not be read", held.failures),
            gauge("segstore_http_connections", "connections for metrics and health", self._connections()),
            counter("segstore_http_scrapes_total", "requests for /metrics", self._scrapes),
        ]


def _judged(reasons: Reasons) -> HttpAnswer:
    if reasons:
        return text_answer(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(reasons))
    return text_answer(HTTPStatus.OK, "ok")
