"""`RequestMetrics`: what one listener has counted since it began: requests by API, connections,
authentications (Kafka: kafka.network:type=RequestMetrics, socket-server-metrics).

Nothing is on disk. Threads: the loop's thread counts; any thread reads, without a lock: counts only grow, and
a row is made at the first request of its API.
"""

from __future__ import annotations

import time
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

from segstore.protocol.codec import Struct
from segstore.protocol.definitions import message
from segstore.server.apis import Api

BOUNDS = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0)
"""Upper bounds of the histogram of times, in seconds; one more bucket has longer times."""
SIZE_FIELD = 4
"""Bytes of a request's size, which come before the request."""


class ApiMetrics:
    """The requests of one API that were answered, or had no answer (acks=0). `received` and `sent` are bytes
    with the size of each message, without those of TLS; `seconds` is the sum of `times`, the number of
    requests by bucket of BOUNDS; `errors` has the number of each error code but NONE.
    """

    __slots__ = ("errors", "received", "seconds", "sent", "times")

    def __init__(self) -> None:
        self.received = self.sent = 0
        self.seconds = 0.0
        self.times = [0] * (len(BOUNDS) + 1)
        self.errors: dict[int, int] = {}

    def add_error(self, code: int, times: int = 1) -> None:
        """Count an error code of an answer."""
        self.errors[code] = self.errors.get(code, 0) + times

    def add_errors(self, api: Api, version: int, body: Any) -> None:
        """Count the error codes in the body of an answer, but those of arrays that were encoded before."""
        if (places := _places(api, version)) is not None:
            self._look(places, body)

    def _look(self, places: _Places, body: Any) -> None:
        for get in places.codes:
            if code := get(body):
                self.add_error(code)
        for name, inner in places.inner:
            found = getattr(body, name)
            if isinstance(found, list):
                self._look_through(inner, found)
            elif isinstance(found, Struct):
                self._look(inner, found)

    def _look_through(self, places: _Places, rows: list[Any]) -> None:
        if places.inner:
            for each in rows:
                self._look(places, each)
            return
        for get in places.codes:
            for code in map(get, rows):
                if code:
                    self.add_error(code)


class _Rows(dict[Api, ApiMetrics]):
    def __missing__(self, api: Api) -> ApiMetrics:
        made = self[api] = ApiMetrics()
        return made


class RequestMetrics:
    """One listener's counts; `listener` is its name. `made` and `refused` count connections, `authenticated`
    and `failed` authentications, `malformed` the requests that have ended their connections.
    """

    def __init__(self, listener: str = "") -> None:
        self.listener, self.since = listener, time.monotonic()
        self.rows: dict[Api, ApiMetrics] = _Rows()
        self.made = self.refused = self.authenticated = self.failed = self.malformed = 0


class Counted(NamedTuple):
    """One listener: its counts, how many connections are open now, and the age of its loop's turn in
    seconds.
    """

    metrics: RequestMetrics
    connections: int
    loop_age: float


# --- where answers have error codes ----------------------------------------------------------------


class _Places(NamedTuple):
    """The error codes of a structure, and its fields with structures that have some."""

    codes: tuple[Any, ...]
    inner: tuple[tuple[str, _Places], ...]


@cache
def _places(api: Api, version: int) -> _Places | None:
    """Return where a response has error codes; None if it has none."""
    return _places_in(f"{api.message}Response", f"{api.message}Response", version)


def _places_in(name: str, kind: str, version: int) -> _Places | None:
    codes, inner = [], []
    for field in message(name).structs[kind]:
        if version not in field.versions:
            continue
        if field.is_struct and (found := _places_in(name, field.kind, version)) is not None:
            inner.append((field.name, found))
        elif field.name.endswith("error_code") and not field.is_array:
            codes.append(attrgetter(field.name))
    return _Places(tuple(codes), tuple(inner)) if codes or inner else None
