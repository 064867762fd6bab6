"""`Listener`: the listening sockets of a server, and the limits of new connections (Kafka: Acceptor and
ConnectionQuotas of SocketServer).

Threads: the loop's thread only.
"""

from __future__ import annotations

import errno
import logging
import resource
import socket
import sys
from functools import partial

from segstore.logger import Logger
from segstore.server.notices import Notices

from .connections import Connections
from .loop import IN
from .shared import Shared

log = Logger("segstore")

_ACCEPTS_A_TURN = 64
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PAUSE = 0.5
"""How long no connections are accepted, in seconds, after the system had no file descriptor for a connection.
"""
_RESERVE = 64
"""Connections leave at least this number of the process's file descriptors to the store, or an eighth of the
process's file descriptors if that is less. Without this reserve idle connections could prevent the store from
rolling a log.
"""


def _most_descriptors() -> int:
    """Return the limit of a connection's file descriptor: only lower numbers are accepted."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft - min(_RESERVE, soft // 8)


class Listener:
    """Accepts connections within the limits. If max_connections or max_connection_creation_rate is reached,
    further clients wait in the kernel's queue. If max_connections_per_ip is reached, the connection is closed
    at once.
    """

    def __init__(self, sockets: list[socket.socket], shared: Shared) -> None:
        self._sockets, self._loop, self._metrics = sockets, shared.loop, shared.metrics
        self._node = shared.node
        self.connections = Connections(shared, self._freed)
        self._rate = shared.node.config.max_connection_creation_rate
        self._second, self._taken = 0.0, 0
        self._is_waiting = False

    def open(self) -> None:
        """Begin to accept connections. Raises OSError."""
        for sock in self._sockets:
            self._loop.add(sock, IN, partial(self._accept, sock))

    def _accept(self, sock: socket.socket, _events: int) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            if not self._may_take():
                return
            try:
                taken, address = sock.accept()
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._warn(
                        "descriptors", "", "a connection can't be taken: %s", error, level=logging.ERROR
                    )
                    self._wait(_PAUSE)
                return
            self._taken += 1
            # The system assigns the lowest free descriptor, so all lower descriptors are in use.
            if taken.fileno() >= _most_descriptors():
                why = "a connection of %s was turned away: the rest of RLIMIT_NOFILE is the store's"
                self._warn("store's", "", why, address[0], level=logging.ERROR)
                self._metrics.refused += 1
                taken.close()
                self._wait(_PAUSE)
                return
            self._take(taken, address[0])

    def _may_take(self) -> bool:
        now = self._loop.now
        if now - self._second >= 1:
            self._second, self._taken = now, 0
        if self.connections.is_full:
            self._wait(None)
        elif self._taken >= self._rate:
            self._wait(self._second + 1 - now)
        return not self._is_waiting

    def _take(self, sock: socket.socket, peer: str) -> None:
        if not self.connections.allows(peer):
            why = "a connection of %s was turned away: max.connections.per.ip are open"
            self._warn("per address", peer, why, peer)
            self._metrics.refused += 1
            sock.close()
            return
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self.connections.add(sock, peer)
            self._metrics.made += 1
        except OSError as error:
            log.debug("a connection of %s was lost: %s", peer, error)
            sock.close()

    def _warn(self, kind: str, peer: str, message: str, *args: object, level: int = logging.WARNING) -> None:
        self._node.part(Notices).log(kind, peer, message, *args, level=level)

    def _wait(self, seconds: float | None) -> None:
        """Accept no connections for `seconds`, or if `seconds` is None, until `_freed` is called."""
        self._is_waiting = True
        for sock in self._sockets:
            self._loop.change(sock, 0)
        if seconds is not None:
            self._loop.later(seconds, self._freed)

    def _freed(self) -> None:
        """Accept connections again. Called when a connection was closed, or the time of `_wait` is over."""
        if self._is_waiting:
            self._is_waiting = False
            for sock in self._sockets:
                self._loop.change(sock, IN)

    def close(self) -> None:
        """Close the listening sockets. The kernel resets connections that were not accepted yet."""
        self._is_waiting = False
        while self._sockets:
            self._loop.remove(self._sockets.pop())
