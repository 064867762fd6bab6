"""`RequestMetrics`: the counts of one listener since its start. It counts the requests of each API,
connections, and authentications (Kafka: kafka.network:type=RequestMetrics, socket-server-metrics).

Owns nothing on disk. Threads: the loop's thread counts; any thread reads without a lock, because counts only
grow, and the row of an API is added at the API's first request and never removed.
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
"""Upper bounds of the histogram buckets of request times, in seconds. One more bucket is for longer times."""
SIZE_FIELD = 4
"""The number of bytes in the size field before each request."""


class ApiMetrics:
    """The counts of one API's requests that were answered, or need no answer (acks=0).

    The C code counts in `counts`, a seg_counts at address `counts_at`: `received` and `sent` are numbers of
    bytes, including size fields, before encryption; `times` has the number of requests in each bucket of
    BOUNDS; `seconds` is the sum of the request times. `errors` has for each error code except NONE how often
    answers had it. `tallies` has for each version of the API the function that counts the error codes of a
    response.
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
        """The number of requests in each bucket of BOUNDS."""
        return list(self.counts.times)

    def add_error(self, code: int) -> None:
        """Count this error code once more."""
        self.errors[code] = self.errors.get(code, 0) + 1


Tally = Callable[[Any, ApiMetrics], None]
"""(response's body, counts of its API): counts the error codes in the body, except NONE."""


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
    """The counts of one listener, whose name is `listener`. `made` and `refused` count connections,
    `authenticated` and `failed` count authentications, and `malformed` counts requests that could not be
    decoded.
    """

    def __init__(self, listener: str = "") -> None:
        self.listener, self.since = listener, time.monotonic()
        self.rows: dict[Api, ApiMetrics] = _ApiRows()
        self.made = self.refused = self.authenticated = self.failed = self.malformed = 0


class Counted(NamedTuple):
    """The metrics of one listener: its counts, the number of open connections, the seconds since its loop's
    current turn began, and the time at which its certificate expires, in seconds since the epoch.
    """

    metrics: RequestMetrics
    connections: int
    loop_age: float
    certificate_end: float | None


# --- error codes of answers -------------------------------------------------------------------------

_ENCODED = ("MetadataResponsePartition",)
"""Structs whose error codes are not counted, because arrays of these structs are cached in encoded form."""


@cache
def _tally(api: Api, version: int) -> Tally:
    """Compile a function that counts the error codes in responses of this API and version, except those in
    structs of `_ENCODED`.
    """
    name = f"{api.message}Response"
    lines = ["def tally(v0, row):", *_lines(name, name, version, 0), "    return None"]
    space: dict[str, Any] = {}
    exec("\n".join(lines), space)
    return space["tally"]  # type: ignore[no-any-return]


def _lines(name: str, kind: str, version: int, depth: int) -> list[str]:
    """Return Python lines that count the error codes of the struct in the variable `v<depth>`."""
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
