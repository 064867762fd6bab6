"""`HttpEndpoint`: answers requests for metrics and health over HTTP, in a thread of this process.

Nothing is on disk. Threads: a thread of the endpoint handles all connections; any thread may call `close` and
the methods of `StoreClient`. The endpoint must not be reachable from the internet, because it uses no TLS and
no authentication.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from http import HTTPStatus
from typing import Any, TypeVar

from segstore.errors import ListenError
from segstore.files import forks
from segstore.listening import listen
from segstore.logger import Logger
from segstore.operating.address import HttpAddress, http_address
from segstore.operating.exposition import check_there
from segstore.operating.http_request import LINE, HttpAnswer, MalformedRequestError, read_request, text_answer
from segstore.operating.operated import Operated
from segstore.operating.pages import Pages
from segstore.storage.store.clients import Turn, Unwritten
from segstore.storage.store.store import Store
from segstore.threads import Background

log = Logger("segstore")
T = TypeVar("T")

MOST = 1100
"""The maximum number of open connections. A further connection is answered with status 503."""
TIMEOUT = 5.0
"""The longest time for receiving a request, and for sending one piece of an answer, in seconds."""
_WHOLE = 60.0
"""The longest time from the beginning of a connection to its end, in seconds."""
_LINGER = 0.5
"""How long the client's bytes are still read after the answer was sent, in seconds. If a connection were
closed with unread bytes, the kernel would discard the answer.
"""
_PIECE = 1 << 16
_BEAT, _ENDING = 1.0, 2.0
_REFUSED_AT_ONCE = 100


class HttpEndpoint:
    """An HTTP endpoint. Implements `storage.store.clients.StoreClient`: it is closed when the store is
    closed. Raises the errors of `http_address`, MissingPackageError, ListenError, IllegalStateError.
    """

    turn = Turn.READER

    def __init__(self, address: str, operated: Operated) -> None:
        check_http(address)
        wanted = http_address(address)
        self._operated, self._here = operated, forks.here()
        self._open = self._refused = 0
        self._most = min(MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._pages = Pages(operated, lambda: self._open)
        self._sockets = listen(wanted.host, wanted.port)
        self.address = HttpAddress(wanted.host, self._sockets[0].getsockname()[1])
        for sock in self._sockets:
            forks.close_in_children(sock)
        self._is_over = False
        self._thread = Background(self._run, "segstore-http")
        try:
            self._loop = asyncio.new_event_loop()
            self._end = asyncio.Event()
            self._pages.start()
            self._thread.start()
        except BaseException as error:
            self._undo()
            if isinstance(error, OSError):
                raise ListenError(error.errno, error.strerror, str(self.address)) from error
            raise

    def _undo(self) -> None:
        """Stop what a failed or interrupted constructor has started."""
        if self._thread.settle():
            self.close()
            return
        self._discard()
        if hasattr(self, "_loop"):
            self._loop.close()

    def _discard(self) -> None:
        self._is_over = True
        self._pages.close()
        for sock in self._sockets:
            sock.close()

    @property
    def url(self) -> str:
        """Return the endpoint's URL."""
        return f"http://{self.address}"

    def close(self) -> None:
        """Close all connections, and stop the thread. A second call does nothing."""
        if self._is_over or not self._here[0]:
            return
        self._is_over = True
        with suppress(RuntimeError):  # the loop is already closed
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(_ENDING)

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._discard()
            self._loop.close()

    async def _serve(self) -> None:
        servers = [
            await asyncio.start_server(self._connected, sock=sock, limit=LINE, backlog=1024)
            for sock in self._sockets
        ]
        while not self._end.is_set():
            for beat in self._operated.heartbeats:
                beat.ask()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._end.wait(), _BEAT)
        for server in servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.wait([*tasks, asyncio.ensure_future(asyncio.sleep(0))], timeout=_ENDING)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request of a connection, and close the connection. Log unexpected errors, and ignore
        errors of the client.
        """
        writer.transport.set_write_buffer_limits(high=0)
        is_one_too_many = self._open >= self._most
        self._open += 1
        try:
            if self._open > self._most + _REFUSED_AT_ONCE:
                return
            talk = self._refuse(reader, writer) if is_one_too_many else self._talk(reader, writer)
            await asyncio.wait_for(talk, _WHOLE)
        except (OSError, EOFError, asyncio.TimeoutError, asyncio.CancelledError):
            """The client has closed the connection, or is too slow, or the endpoint ends."""
        except Exception:
            log.exception("a defect, met by a request over HTTP")
        finally:
            self._open -= 1
            writer.transport.abort()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _in_time(read_request(reader))
        except MalformedRequestError as error:
            await self._send(writer, error.answer)
            await self._linger(reader, writer)
            return
        except asyncio.TimeoutError:
            text = f"no whole request has come in {TIMEOUT:g} s"
            await self._send(writer, text_answer(HTTPStatus.REQUEST_TIMEOUT, text))
            return
        try:
            answer = await self._pages.answer(request)
        except Exception:
            log.exception("a defect, met by a request over HTTP for %s", request.path)
            answer = text_answer(HTTPStatus.INTERNAL_SERVER_ERROR, "a defect: see the log")
        await self._send(writer, answer, request.method != "HEAD")
        await self._linger(reader, writer)

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        text = f"there are {self._most} connections already"
        await self._send(writer, text_answer(HTTPStatus.SERVICE_UNAVAILABLE, text))
        await self._linger(reader, writer)

    async def _send(self, writer: asyncio.StreamWriter, answer: HttpAnswer, whole: bool = True) -> None:
        """Send an answer piece by piece, so that only one piece is buffered for a slow client. Send only the
        head if `whole` is False.
        """
        writer.write(answer.head())
        body = memoryview(answer.body if whole else b"")
        for at in range(0, len(body), _PIECE):
            writer.write(body[at : at + _PIECE])
            await _in_time(writer.drain())
        await _in_time(writer.drain())

    async def _linger(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read until the client closes the connection, for at most `_LINGER` seconds."""
        writer.write_eof()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._read_out(reader), _LINGER)

    async def _read_out(self, reader: asyncio.StreamReader) -> None:
        while await reader.read(_PIECE):
            """Bytes after the request are ignored."""

    # --- a client of its store --------------------------------------------------------------------

    def entered(self) -> bool:
        """Return False, because the endpoint's thread never runs code of the application."""
        return False

    def begin_to_close(self) -> None:
        """Do nothing, because an endpoint writes no records."""

    def close_with_store(self, deadline: float, orderly: bool) -> None:
        """Close the endpoint, because the store is being closed."""
        self.close()

    def unwritten(self) -> Unwritten:
        """Return an empty `Unwritten`, because an endpoint has no unwritten records."""
        return Unwritten(Counter(), None)


async def _in_time(call: Coroutine[Any, Any, T]) -> T:
    return await asyncio.wait_for(call, TIMEOUT)


def attached(address: str, operated: Operated, store: Store) -> HttpEndpoint:
    """Return a new endpoint, which will be closed with the store. Raises the errors of `HttpEndpoint`, and
    StoreClosedError.
    """
    endpoint = HttpEndpoint(address, operated)
    try:
        store.attach_client(endpoint)
    except BaseException:
        endpoint.close()
        raise
    return endpoint


def check_http(address: str) -> None:
    """Raise InvalidArgumentError or InvalidTypeError if the address is not valid, and MissingPackageError if
    prometheus-client is not installed.
    """
    http_address(address)
    check_there()
