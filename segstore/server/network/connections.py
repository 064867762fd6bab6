"""`Connections`: all connections of a server: how many there are, from where, which have idled too long.

Threads: the loop's only.
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

_SHORTEST_ROUND = 0.02  # seconds


class Connections:
    """`freed()` is called when one has ended."""

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
        """Return whether max_connections are open."""
        return len(self._all) >= self._config.max_connections

    def allows(self, peer: str) -> bool:
        """Return whether an address may have one more connection."""
        return self._peers[peer] < self._config.max_connections_per_ip

    def add(self, sock: socket.socket, peer: str) -> None:
        """Serve a client until its connection ends. Raises OSError."""
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
        """Have all clients judged anew."""
        for connection in self._all:
            connection.resecure(sasl)

    # --- idle ones ------------------------------------------------------------------------

    def _limits(self) -> list[tuple[int, tuple[ConnectionState, ...]]]:
        """Return how many ms a connection may be in some states without a byte that comes or goes."""
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
            # So a limit may be exceeded by a quarter.
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
        """Close those of which no request is being answered; the others close after their answer."""
        for connection in [*self._all]:
            connection.end_if_idle()

    def end_unanswered(self) -> None:
        """Close those whose answer is not on its way yet."""
        for connection in [*self._all]:
            if connection.state is not ConnectionState.WRITING:
                connection.close()

    def end_stalled(self, seconds: float, since: float) -> None:
        """Close those whose clients have taken nothing of an answer for so long, which counts from the time
        `since` on.
        """
        now = self._shared.loop.now
        for connection in [*self._all]:
            if connection.state is ConnectionState.WRITING:
                connection.look_what_is_taken()
                if now - max(connection.active_at, since) >= seconds:
                    connection.close()

    def close(self) -> None:
        """Close all."""
        for connection in [*self._all]:
            connection.close()
