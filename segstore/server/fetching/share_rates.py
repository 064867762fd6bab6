"""`ShareRates`: the numbers of ShareFetch and ShareAcknowledge requests, by Kafka's names of these metrics
(BrokerTopicMetrics).

Owns nothing on disk. Threads: the loop's thread counts; any thread reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from segstore.server.apis import Api
from segstore.server.request import LATER, Request

_NAMES = {Api.SHARE_FETCH: "ShareFetch", Api.SHARE_ACKNOWLEDGE: "ShareAcknowledgement"}


class ShareRates:
    """Counts all requests; counts separately the requests with a top-level error or an error of a
    partition.
    """

    def __init__(self) -> None:
        self._total: Counter[Api] = Counter()
        self._failed: Counter[Api] = Counter()

    def counted(self, request: Request, begin: Callable[[Request], Any]) -> Any:
        """Count a request, and return the result of `begin(request)`. If the answer has an error, count the
        error when the answer is ready.
        """
        self._total[request.api] += 1
        answer = request.answer

        def answer_counted(body: Any) -> None:
            self._failed[request.api] += _has_error(body)
            answer(body)

        request.answer = answer_counted
        body = begin(request)
        if body is not LATER:
            self._failed[request.api] += _has_error(body)
        return body

    def values(self) -> dict[str, float]:
        """Return Kafka's name of a metric -> number of requests."""
        found: dict[str, float] = {}
        for api, name in _NAMES.items():
            found[f"Total{name}RequestsPerSec"] = self._total[api]
            found[f"Failed{name}RequestsPerSec"] = self._failed[api]
        return found


def _has_error(body: Any) -> bool:
    return bool(body.error_code) or any(
        row.error_code or getattr(row, "acknowledge_error_code", 0)
        for topic in body.responses
        for row in topic.partitions
    )
