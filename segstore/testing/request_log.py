"""`RequestLog`: a log of the last `MOST` requests to a test's broker.

Threads: the server's loop adds requests; any thread may read them.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from segstore.protocol.codec import Struct
from segstore.protocol.definitions import Field, message
from segstore.server.apis import Api
from segstore.server.request import Request

MOST = 10_000
SECRETS = frozenset({"auth_bytes", "salt", "salted_password"})


@dataclass(frozen=True)
class LoggedRequest:
    """One request. `time` is in seconds since the epoch.

    `fields` has the fields that exist in the request's version, by Kafka's names in snake_case. Structures
    are dicts, and arrays are lists. In place of record batches and secrets `fields` has their sizes in bytes.
    (A test finds the records in the broker's store.)
    """

    api: Api
    version: int
    client_id: str | None
    fields: dict[str, Any]
    time: float


class RequestLog:
    """A log of the last `MOST` requests."""

    def __init__(self) -> None:
        self._kept: deque[LoggedRequest] = deque(maxlen=MOST)

    def add(self, request: Request) -> None:
        """Log a request."""
        name = f"{request.api.message}Request"
        fields, now = _fields(request.body, name, name, request.version), time.time()
        self._kept.append(LoggedRequest(request.api, request.version, request.client_id, fields, now))

    def all(self) -> list[LoggedRequest]:
        """Return all logged requests; the oldest request is first."""
        # The deque is copied first, because another thread may add requests: copying is atomic, iterating is
        # not.
        return list(self._kept.copy())

    def clear(self) -> None:
        """Remove all requests."""
        self._kept.clear()


def _fields(body: Struct, name: str, struct: str, version: int) -> dict[str, Any]:
    fields = message(name).structs[struct]
    return {f.name: _plain(getattr(body, f.name), f, name, version) for f in fields if version in f.versions}


def _plain(value: Any, field: Field, name: str, version: int) -> Any:
    if value is None:
        return None
    if field.kind == "records" or field.name in SECRETS:
        return len(value)
    if not field.is_struct:
        return list(value) if field.is_array else value
    if field.is_array:
        return [_fields(each, name, field.kind, version) for each in value]
    return _fields(value, name, field.kind, version)
