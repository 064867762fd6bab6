"""`Listener`: the sockets that a server listens on, and which connections it takes (Kafka: Acceptor and
ConnectionQuotas of SocketServer).

Threads: the loop's only.
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
"""Seconds until a connection is tried again for which there was no descriptor."""
_RESERVE = 64
"""Descriptors that connections leave to the store, at most an eighth of all: else it could roll no log, and
open no file, once clients that do nothing have taken the last one.
"""


def _most_descriptors() -> int:
    """Return how many descriptors there are before those that are left to the store."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft - min(_RESERVE, soft // 8)


class Listener:
    """Takes connections while there is room: beyond max_connections and max_connection_creation_rate clients
    wait in the kernel's queue; beyond max_connections_per_ip they are turned away.
    """

    def __init__(self, sockets: list[socket.socket], shared: Shared) -> None:
        self._sockets, self._loop, self._metrics = sockets, shared.loop, shared.metrics
        self._node = shared.node
        self.connections = Connections(shared, self._freed)
        self._rate = shared.node.config.max_connection_creation_rate
        self._second, self._taken = 0.0, 0
        self._is_waiting = False

    def open(self) -> None:
        """Begin to take connections. Raises OSError."""
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
                    self._tell(
                        "descriptors", "", "a connection can't be taken: %s", error, level=logging.ERROR
                    )
                    self._wait(_PAUSE)
                return
            self._taken += 1
            if taken.fileno() >= _most_descriptors():  # the system gives the lowest that is free
                why = "a connection of %s was turned away: the rest of RLIMIT_NOFILE is the store's"
                self._tell("store's", "", why, address[0], level=logging.ERROR)
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
            self._tell("per address", peer, why, peer)
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

    def _tell(self, kind: str, peer: str, message: str, *args: object, level: int = logging.WARNING) -> None:
        self._node.part(Notices).tell(kind, peer, message, *args, level=level)

    def _wait(self, seconds: float | None) -> None:
        """Take no connections for so long, or until `_freed`."""
        self._is_waiting = True
        for sock in self._sockets:
            self._loop.change(sock, 0)
        if seconds is not None:
            self._loop.later(seconds, self._freed)

    def _freed(self) -> None:
        """There may be room for one more."""
        if self._is_waiting:
            self._is_waiting = False
            for sock in self._sockets:
                self._loop.change(sock, IN)

    def close(self) -> None:
        """Take no more connections; those in the kernel's queue are turned away."""
        self._is_waiting = False
        while self._sockets:
            self._loop.remove(self._sockets.pop())
