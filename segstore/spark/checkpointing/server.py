"""A server for local clients: listens on the loopback address, a thread for each connection. Nothing on disk.

Threads: `serve` is called by many at once. `close` cuts all connections and waits for their threads.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable

from segstore.spark.checkpointing.http_server import BadRequestError, Request, Response, read_request, send

log = logging.getLogger("segstore")

HOST = "127.0.0.1"
_BACKLOG = 128
_PAUSE = 0.1  # seconds, where there are no descriptors left
_WAIT = 10.0  # seconds for threads that are still writing to the log

Serve = Callable[[Request], Response | None]
"""None: the connection is cut without an answer."""


class Server:
    """Runs from the moment that it is made. OSError where the port is taken."""

    def __init__(self, serve: Serve, port: int = 0) -> None:
        self._serve = serve
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._closed = False
        self._listener = socket.create_server((HOST, port), backlog=_BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name=f"segstore-http-{self.port}", daemon=True)
        self._acceptor.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if not self._closed:
                    log.warning("port %d: accept: %s", self.port, error)
                    time.sleep(_PAUSE)
                continue
            self._start(connection)

    def _start(self, connection: socket.socket) -> None:
        thread = threading.Thread(
            target=self._run, args=(connection,), name=f"{self._acceptor.name}-connection", daemon=True
        )
        with self._lock:
            if self._closed:
                connection.close()
                return
            self._open[connection] = thread
        thread.start()

    def _run(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection.makefile("rb", 1 << 16) as source:
                while self._one(connection, source):
                    continue
        except OSError as error:
            log.debug("port %d: a connection ended: %s", self.port, error)
        except Exception:
            log.exception("port %d: a connection failed", self.port)
        finally:
            with self._lock:
                self._open.pop(connection, None)
            connection.close()

    def _one(self, connection: socket.socket, source: object) -> bool:
        """Whether another request may come."""
        try:
            request = read_request(source, connection)  # type: ignore[arg-type]
        except BadRequestError as error:
            text = str(error).encode()
            send(connection, Response(400, [text], len(text)), True)
            return False
        if request is None:
            return False
        response = self._serve(request)
        if response is None:
            return False
        last = request.last or not request.body.drained()
        send(connection, response, last)
        return not last

    def close(self) -> None:
        """A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            running = dict(self._open)
        # A thread that is within accept() is woken by a connection, whatever the kernel does on close.
        with contextlib.suppress(OSError):
            socket.create_connection((HOST, self.port), timeout=1).close()
        self._acceptor.join(_WAIT)
        self._listener.close()
        for connection in running:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in running.values():
            if thread is not threading.current_thread():
                thread.join(_WAIT)
