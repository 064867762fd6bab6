"""`RequestMetrics`: what one listener has counted since it began: requests by API, connections,
authentications (Kafka: kafka.network:type=RequestMetrics, socket-server-metrics).

Nothing is on disk. Threads: the loop's thread counts; any thread reads, without a lock: counts only grow, and
a row is made at the first request of its API.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from segstore._native import address, ffi
from segstore.protocol.definitions import message
from segstore.server.apis import Api

BOUNDS = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0)
"""Upper bounds of the histogram of times, in seconds; one more bucket has longer times."""
SIZE_FIELD = 4
"""Bytes of a request's size, which come before the request."""


class ApiMetrics:
    """The requests of one API that were answered, or had no answer (acks=0). `received` and `sent` are bytes
    with the size of each message, without those of TLS; `seconds` is the sum of `times`, the number of
    requests by bucket of BOUNDS; `errors` has the number of each error code but NONE. C counts in `counts`,
    which lie at `counts_at`. `tallies` has by version what counts the error codes of a response's body.
    """

    __slots__ = ("counts", "counts_at", "errors", "tallies")

    def __init__(self, api: Api) -> None:
        self.counts = ffi.new("seg_counts *")
        self.counts.bounds = BOUNDS
        self.counts_at = address(self.counts)
        self.errors: dict[int, int] = {}
        self.tallies: dict[int, Tally] = _Tallies(api)

    @property
    def times(self) -> list[int]:
        """Return the number of requests by bucket."""
        return list(self.counts.times)

    def add_error(self, code: int) -> None:
        """Count an error code of an answer."""
        self.errors[code] = self.errors.get(code, 0) + 1


Tally = Callable[[Any, ApiMetrics], None]
"""Counts each error code of a response's body but NONE."""


class _Tallies(dict[int, Tally]):
    def __init__(self, api: Api) -> None:
        self._api = api

    def __missing__(self, version: int) -> Tally:
        made = self[version] = _tally(self._api, version)
        return made


class _ApiRows(dict[Api, ApiMetrics]):
    def __missing__(self, api: Api) -> ApiMetrics:
        made = self[api] = ApiMetrics(api)
        return made


class RequestMetrics:
    """One listener's counts; `listener` is its name. `made` and `refused` count connections, `authenticated`
    and `failed` authentications, `malformed` the requests that have ended their connections.
    """

    def __init__(self, listener: str = "") -> None:
        self.listener, self.since = listener, time.monotonic()
        self.rows: dict[Api, ApiMetrics] = _ApiRows()
        self.made = self.refused = self.authenticated = self.failed = self.malformed = 0


class Counted(NamedTuple):
    """One listener: its counts, how many connections are open now, the age of its loop's turn in seconds, and
    when its certificate ends, in seconds since the epoch.
    """

    metrics: RequestMetrics
    connections: int
    loop_age: float
    certificate_end: float | None


# --- where answers have error codes ----------------------------------------------------------------

_ENCODED = ("MetadataResponsePartition",)
"""Structures whose arrays are encoded once, and sent in many answers."""


@cache
def _tally(api: Api, version: int) -> Tally:
    """Return what counts the error codes of a version, without those of arrays that were encoded before."""
    name = f"{api.message}Response"
    lines = ["def tally(v0, row):", *_lines(name, name, version, 0), "    return None"]
    space: dict[str, Any] = {}
    exec("\n".join(lines), space)
    return space["tally"]  # type: ignore[no-any-return]


def _lines(name: str, kind: str, version: int, depth: int) -> list[str]:
    """Return Python that looks at a structure, which is in the variable `v<depth>`."""
    found, indent, each = [], "    " * (1 + depth), f"v{depth}"
    for field in message(name).structs[kind]:
        if version not in field.versions:
            continue
        value = f"{each}.{field.name}"
        if field.is_struct and field.kind not in _ENCODED:
            rows = f"{value} or ()" if field.is_array else f"({value},) if {value} else ()"
            if inner := _lines(name, field.kind, version, depth + 1):
                found += [f"{indent}for v{depth + 1} in {rows}:", *inner]
        elif field.name.endswith("error_code") and not field.is_array:
            found.append(f"{indent}if {value}: row.add_error({value})")
    return found
