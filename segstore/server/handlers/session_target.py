"""What the requests of one fetch session share that are answered without reading them field by field.
Threads: the loop's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from segstore.coordinator.throttle import QuotaThrottle
from segstore.server.fetching.purgatory import Purgatory
from segstore.server.fetching.reading import Terms
from segstore.server.fetching.sessions import FetchSessions, Key, Wanted
from segstore.server.logs import Logs


class SessionTarget(NamedTuple):
    """What a session's fetches share with all others. `serve` answers a request that has waited, as the
    handler does, from the epoch to which it took the session and its correlation id.
    """

    logs: Logs
    purgatory: Purgatory
    sessions: FetchSessions
    terms: Terms
    throttle: QuotaThrottle
    serve: Callable[[int, int], None]


class Named(NamedTuple):
    """The partition that a request names: its place in the session, what the session has there, and what is
    asked of it. The request's fetch offset is put into `asked` before each use.
    """

    key: Key
    wanted: Wanted
    asked: Wanted
