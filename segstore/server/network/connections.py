"""`Connections`: the open connections of a listener, with limits of their number, their number by address,
and their idle time.

Threads: the loop's thread only.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from segstore.server.settings import ServerConfig

from .connection import ConnectionState, ServerConnection
from .shared import Shared

if TYPE_CHECKING:
    from segstore.server.security.sasl import Sasl

_SHORTEST_ROUND = 0.02  # least time between two checks, in seconds


class Connections:
    """The open connections of a listener; `freed()` is called when a connection is closed."""

    def __init__(self, shared: Shared, freed: Callable[[], object]) -> None:
        self._shared, self._freed = shared, freed
        self._config: ServerConfig = shared.node.config
        self._all: set[ServerConnection] = set()
        self._peers: Counter[str] = Counter()
        self._is_looking = False

    def __len__(self) -> int:
        return len(self._all)

    @property
    def is_full(self) -> bool:
        """Whether `max_connections` connections are open."""
        return len(self._all) >= self._config.max_connections

    def allows(self, peer: str) -> bool:
        """Return whether the client address `peer` may have one more connection."""
        return self._peers[peer] < self._config.max_connections_per_ip

    def add(self, sock: socket.socket, peer: str) -> None:
        """Open the connection of a new client. Raises OSError."""
        connection = ServerConnection(sock, peer, self._shared, self._closed)
        connection.open()
        self._all.add(connection)
        self._peers[peer] += 1
        if not self._is_looking:
            self._look_later()

    def _closed(self, connection: ServerConnection) -> None:
        self._all.discard(connection)
        self._peers -= Counter((connection.peer,))
        self._freed()

    def resecure(self, sasl: Sasl | None) -> None:
        """Apply reloaded security settings to all connections."""
        for connection in self._all:
            connection.resecure(sasl)

    # --- idle connections -----------------------------------------------------------------

    def _limits(self) -> list[tuple[int, tuple[ConnectionState, ...]]]:
        """Return (ms, states) pairs: a connection that is in one of the states is closed after this time
        without traffic.
        """
        waiting = (
            ConnectionState.READING,
            ConnectionState.QUEUED,
            ConnectionState.STARVING,
            ConnectionState.THROTTLED,
        )
        config = self._config
        limits = [
            (config.connections_max_idle_ms, waiting),
            (config.response_write_max_ms, (ConnectionState.WRITING,)),
        ]
        return [(ms, states) for ms, states in limits if ms >= 0]

    def _look_later(self) -> None:
        limits = self._limits()
        self._is_looking = bool(limits and self._all)
        if self._is_looking:
            # Connections are checked every quarter of the shortest limit, so a connection is closed up to
            # that much later than its limit.
            seconds = max(min(ms for ms, _ in limits) / 4000, _SHORTEST_ROUND)
            self._shared.loop.later(seconds, self._end_idle)

    def _end_idle(self) -> None:
        now = self._shared.loop.now
        for ms, states in self._limits():
            for connection in [*self._all]:
                if connection.state in states and (now - connection.active_at) * 1000 >= ms:
                    connection.close()
        self._look_later()

    # --- the end --------------------------------------------------------------------------

    def end_idle_now(self) -> None:
        """Close the connections that are not answering a request. A connection that answers one is closed
        after the answer.
        """
        for connection in [*self._all]:
            connection.end_if_idle()

    def end_unanswered(self) -> None:
        """Close the connections that are not sending an answer."""
        for connection in [*self._all]:
            if connection.state is not ConnectionState.WRITING:
                connection.close()

    def end_stalled(self, seconds: float, since: float) -> None:
        """Close connections that are sending an answer, but whose clients have acknowledged no bytes for
        `seconds`. Time before `since` does not count.
        """
        now = self._shared.loop.now
        for connection in [*self._all]:
            if connection.state is ConnectionState.WRITING:
                connection.note_acknowledged()
                if now - max(connection.active_at, since) >= seconds:
                    connection.close()

    def close(self) -> None:
        """Close all connections."""
        for connection in [*self._all]:
            connection.close()
