"""An HTTP/1.1 server for local clients. It listens on the loopback address, and has a thread for each
connection.

Threads: several threads may call `serve` at the same time. `close` closes all connections, and waits for
their threads.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import BinaryIO

# --- wire --------------------------------------------------------------------------------------

# The Hadoop client uses HTTP/1.1, and sends one request after another on a connection. Threads: each
# connection has a thread of its own. No thread has a lock while it receives or sends a body.

_MOST_LINE = 1 << 16
_MOST_HEADERS = 100
_PART = 1 << 16
# If more bytes of a request's body than this are unread after the response, the connection is closed.
_MOST_LEFT = 1 << 24


class BadRequestError(Exception):
    """The bytes are not an HTTP request that this server understands."""


@dataclass
class CheckpointRequest:
    """A request. `target` is the path and the query as the client has sent them. Header names are in lower
    case.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: RequestBody
    version: str = "HTTP/1.1"

    @property
    def last(self) -> bool:
        """Return whether the client closes the connection after this request."""
        connection = self.headers.get("connection", "").lower()
        return connection == "close" or (self.version == "HTTP/1.0" and connection != "keep-alive")


@dataclass
class Response:
    """A response. `parts` is the body, which has `length` bytes in total. A response never has a header
    Content-Type, because the client that PySpark contains fails if there is one.
    """

    status: int
    parts: Iterable[bytes] = ()
    length: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)

    def head(self, last: bool) -> bytes:
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}", f"Content-Length: {self.length}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines += ["Connection: close"] if last else []
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class RequestBody:
    """The body of a request; an iteration yields its parts. It raises ConnectionError if the client
    disconnects before the body is complete.
    """

    def __init__(self, source: BinaryIO, headers: Mapping[str, str], sink: socket.socket) -> None:
        self._source, self._sink = source, sink
        self._awaits_continue = headers.get("expect", "").lower() == "100-continue"
        encoding = headers.get("transfer-encoding", "identity").lower()
        if encoding not in ("identity", "chunked"):
            raise BadRequestError(f"Transfer-Encoding: {encoding}")
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            raise BadRequestError(f"Content-Length: {length}")
        self._parts = self._chunked() if encoding == "chunked" else self._plain(int(length))

    def __iter__(self) -> Iterator[bytes]:
        if self._awaits_continue:
            self._awaits_continue = False
            self._sink.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        return self._parts

    def drained(self) -> bool:
        """Read the body to its end, and return True. Return False if more than _MOST_LEFT bytes are unread,
        or if the client is waiting for "100 Continue" before it sends the body.
        """
        left = 0
        if not self._awaits_continue:
            for part in self._parts:
                left += len(part)
                if left > _MOST_LEFT:
                    return False
        return not self._awaits_continue

    def _plain(self, left: int) -> Iterator[bytes]:
        while left:
            data = self._source.read(min(left, _PART))
            if not data:
                raise ConnectionError("the client went away within a body")
            left -= len(data)
            yield data

    def _chunked(self) -> Iterator[bytes]:
        while True:
            line = _line(self._source)
            try:
                size = int(line.partition(b";")[0], 16)
            except ValueError:
                raise ConnectionError(f"no size of a chunk: {line!r:.80}") from None
            yield from self._plain(size)
            if not size:
                while _line(self._source):
                    continue  # Trailers are ignored.
                return
            if _line(self._source):
                raise ConnectionError("a chunk that does not end where it said")


def read_request(source: BinaryIO, sink: socket.socket) -> CheckpointRequest | None:
    """Return the next request; None if the client has closed the connection. Raises BadRequestError,
    ConnectionError.
    """
    first = source.readline(_MOST_LINE)
    if not first:
        return None
    words = first.decode("latin-1").split()
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not first.endswith(b"\n"):
        raise BadRequestError(f"{first!r:.80}")
    headers: dict[str, str] = {}
    for _ in range(_MOST_HEADERS):
        line = _line(source)
        if not line:
            return CheckpointRequest(
                words[0], words[1], headers, RequestBody(source, headers, sink), words[2]
            )
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            raise BadRequestError(f"{line!r:.80}")
        headers[name.strip().lower()] = value.strip()
    raise BadRequestError(f"more than {_MOST_HEADERS} headers")


def _line(source: BinaryIO) -> bytes:
    line = source.readline(_MOST_LINE)
    if not line.endswith(b"\n"):
        raise ConnectionError("the client went away, or its line is too long")
    return line.rstrip(b"\r\n")


def send(sink: socket.socket, response: Response, last: bool) -> None:
    """Send a response; its head and its first part are sent by one call. Raises OSError. If `parts` raises an
    exception, the response is incomplete.
    """
    parts = iter(response.parts)
    sink.sendall(response.head(last) + next(parts, b""))
    for part in parts:
        sink.sendall(part)


# --- http server ------------------------------------------------------------

log = logging.getLogger("segstore")

HOST = "127.0.0.1"
_BACKLOG = 128
# The pause after a failed accept(), in seconds: there may be no free file descriptor.
_PAUSE = 0.1
# The longest wait of `close` for the threads of connections, in seconds.
_WAIT = 10.0

Serve = Callable[[CheckpointRequest], Response | None]
"""A function that returns the response to a request. If it returns None, the connection is closed without a
response.
"""


class CheckpointServer:
    """An HTTP server. The constructor starts it; it raises OSError if the port is in use."""

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
        """Read one request, and send its response. Return whether the connection stays open."""
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
        """Stop the server; a second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            running = dict(self._open)
        # A connection wakes a thread that waits in accept(); closing the socket does not wake it on every
        # kernel.
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
