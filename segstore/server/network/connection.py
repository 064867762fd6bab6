"""`ServerConnection`: the connection of one client. Requests are answered one by one, in order (Kafka:
SocketServer, KafkaChannel).

    SHAKING -> READING                 with TLS
    READING -> WORKING -> WRITING -> THROTTLED -> READING        any -> CLOSED
    READING -> QUEUED -> READING       more requests were received, but other connections are served first
    READING -> STARVING -> QUEUED      a large request waits for memory

Bytes are read in READING only. In every other state received bytes stay in the kernel's buffer, and TCP flow
control stops the client. If epoll reports bytes in such a state, the connection stops waiting for bytes, by
epoll_ctl(2). A client that waits for each answer sends no such bytes, so it never causes this system call. If
the connection uses TLS, decrypted bytes may be in memory; epoll does not report them. Threads: the loop's
thread only.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from errno import EAGAIN
from typing import TYPE_CHECKING, Any

from segstore._native._counts import seg_count as _count
from segstore.errors import InvalidRequestError, UnsupportedVersionError
from segstore.logger import Logger
from segstore.protocol.codec import Slices
from segstore.server.apis import Api, write_response
from segstore.server.notices import Notices
from segstore.server.request import ANONYMOUS, ANSWERED, Answered, ApiCounts, Later, Response

from . import exchange
from .frames import Frames
from .handshake import Handshake
from .loop import COME, GONE, IN, OUT, RDHUP
from .outgoing import Outgoing, SealedOutgoing, taken
from .request_metrics import SIZE_FIELD, ApiMetrics
from .shared import Shared
from .timers import LoopTimer

if TYPE_CHECKING:
    from segstore.server.learned.request import LearnedRequest
    from segstore.server.security.sasl import Sasl, SaslSession

log = Logger("segstore")
REQUESTS_A_TURN = 64
_SIZE = struct.Struct(">i")


class ConnectionState(Enum):
    """The states of a connection; the module's docstring shows the transitions."""

    SHAKING = auto()
    READING = auto()
    QUEUED = auto()
    STARVING = auto()
    WORKING = auto()
    WRITING = auto()
    THROTTLED = auto()
    CLOSED = auto()


class ServerConnection:
    """The connection of one client. Implements `segstore.server.request.Channel`.

    `active_at` is the time (`Loop.now`) at which bytes were last received or sent. `closed(connection)` is
    called when the connection is closed.
    """

    def __init__(
        self, sock: socket.socket, peer: str, shared: Shared, closed: Callable[[ServerConnection], object]
    ) -> None:
        self.principal, self.peer, self.is_open = ANONYMOUS, peer, True
        self.state, self.active_at = ConnectionState.READING, shared.loop.now
        self._sock, self._fd, self._shared, self._closed = sock, sock.fileno(), shared, closed
        self._frames = Frames(shared.node.config.socket_request_max_bytes)
        self._wire = None if shared.tls is None else shared.tls(sock)
        self._outgoing = Outgoing() if self._wire is None else SealedOutgoing(self._wire, shared.clear)
        self._handshake: Handshake | None = None
        self._setup: LoopTimer | None = None
        self.sasl: SaslSession | None = None
        self.learned: LearnedRequest | None = None
        self._events = IN  # the epoll events that the loop waits for
        self._taken = 0  # number of acknowledged bytes at the last call of `note_acknowledged`
        self._memory = 0  # number of bytes that this connection has taken from `Shared.memory`
        self._muted_until = 0.0
        self._farewells: list[Callable[[], object]] = []
        self._is_serving = self._reads_next = False
        self._row: ApiCounts | None = None  # counts of the current request's API
        self._received = 0  # size of the current request

    def open(self) -> None:
        """Register the socket with the loop, and begin the TLS handshake, or begin to read if the connection
        does not use TLS. Raises OSError.
        """
        shared = self._shared
        if shared.sasl is not None:
            self.sasl = shared.sasl.session(self._entered)
            self._frames.most = min(self._frames.most, shared.node.config.sasl_server_max_receive_size)
        ready = self._ready
        if self._wire is not None:
            self.state = ConnectionState.SHAKING
            self._handshake = Handshake(self._sock, self._wire, shared.loop, self._shaken)
            ready = self._handshake.ready
        shared.loop.add(self._sock, self._events, ready)
        if self._wire is not None or self.sasl is not None:
            self._setup = shared.loop.later(shared.node.config.connection_setup_max_ms / 1000, self._give_up)

    # --- authentication -------------------------------------------------------------------

    def _shaken(self, error: BaseException | None) -> None:
        """Begin to read after the TLS handshake, or close the connection if the handshake has failed."""
        assert self._wire is not None
        if error is not None:
            if isinstance(error, ConnectionError):
                # The peer has closed the connection, as a load balancer's probe does.
                log.debug("the connection of %s was closed in its TLS handshake: %s", self.peer, error)
            else:
                self._shared.metrics.failed += 1
                self._warn("TLS", "its TLS handshake failed: %s", error)
            self.close()
            return
        self._handshake = None
        self.state = ConnectionState.READING
        self._shared.loop.hand_over(self._sock, self._ready)
        if self.sasl is None:
            self.principal = self._wire.subject or ANONYMOUS
            self._shared.metrics.authenticated += 1
            self._set_up()
        if self._wire.has_more:
            self._read()

    def resecure(self, sasl: Sasl | None) -> None:
        """Apply reloaded security settings: the next authentication checks the users of `sasl`."""
        # `learned` is dropped, because it answers requests that the old allow list has authorized.
        self.learned = None
        if self.sasl is not None and sasl is not None:
            self.sasl.sasl = sasl

    def _entered(self, principal: str) -> None:
        """Set the principal of a client that has authenticated by SASL."""
        self.principal, self.learned = principal, None
        self._frames.most = self._shared.node.config.socket_request_max_bytes
        self._shared.metrics.authenticated += 1
        self._set_up()

    def _set_up(self) -> None:
        if self._setup is not None:
            self._setup.cancel()
            self._setup = None

    def _give_up(self) -> None:
        self._warn("setup", "its client took too long to authenticate")
        self.close()

    # --- events ---------------------------------------------------------------------------

    def _ready(self, events: int) -> None:
        if events == COME and self.state is ConnectionState.READING:
            self._read()
            return
        if events & GONE and not (
            self.state is ConnectionState.READING and events & IN
        ):  # If READING, received bytes are read first; the end of the stream then closes the connection.
            self.close()
            return
        if events & OUT:
            self._send()
        if events & IN:
            if self.state is ConnectionState.READING:
                self._read()
            elif self.is_open:
                self._not_now(events)

    def _not_now(self, events: int) -> None:
        """Stop waiting for bytes: received bytes stay in the kernel. If the client has closed the connection
        while a request of the client is handled, close this end of the connection too.
        """
        if not events & RDHUP:
            self._want(self._events & ~IN | RDHUP)
        elif self.state is ConnectionState.WORKING and self._has_left():
            self.close()
        else:
            self._want(self._events & ~IN)

    def _has_left(self) -> bool:
        """Return whether the client has closed the connection, and all bytes that the client has sent were
        read.
        """
        if not self._frames.is_empty:
            return False
        try:
            if self._wire is not None:
                return self._wire.has_left()
            return not self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _want(self, events: int) -> None:
        if events != self._events:
            self._events = events
            self._shared.loop.change(self._sock, events)

    # --- requests -------------------------------------------------------------------------

    def _read(self) -> None:
        learned = self.learned
        if learned is not None and self._wire is None and self._frames.is_empty and self._exchanged(learned):
            return
        try:
            count = self._frames.receive(self._wire or self._sock, self._shared.scratch)
        except BlockingIOError:
            self._want(self._events | IN)
            return
        except OSError:
            count = 0
        if not count:
            self.close()
            return
        self.active_at = self._shared.loop.now
        self._serve()

    def _exchanged(self, learned: LearnedRequest) -> bool:
        """Let the C code receive a request, and answer it if possible; return True. If the C code can't be
        used, receive nothing and return False.
        """
        shared = self._shared
        try:
            result = learned.receive(self._fd, shared.scratch.for_c)
        except Exception as error:
            log.error("the connection of %s was closed", self.peer, exc_info=error)
            self.close()
            return True
        if result is None:
            return False
        count, response, sent = result
        if count > 0:
            self.active_at = shared.loop.now
        # The C code has not only answered the request, but also counted it.
        if response is ANSWERED:
            if not shared.is_ending:
                return True
        elif response is not None:
            self._row, self._received = learned.row, count
        if isinstance(response, Later):
            self.state = ConnectionState.WORKING
            return True
        self._go_on_with(count, response, sent)
        return True

    def _go_on_with(self, count: int, response: Response | Answered | None, sent: int) -> None:
        if count == -EAGAIN:
            self._want(self._events | IN)
        elif count <= 0 or isinstance(response, Answered):
            self.close()
        elif response is None:
            self._frames.received(count, self._shared.scratch)
            self._serve()
        else:
            self.give(*response, sent)

    def _serve(self) -> None:
        """Handle received requests in order, until a request must be answered later. Called in the state
        READING.
        """
        self._is_serving = True
        frames = self._frames
        try:
            for _ in range(REQUESTS_A_TURN):
                frame = frames.take()
                if frame is None:
                    self._wait_for_more()
                    break
                learned = self.learned
                if learned is None or (response := learned(frame)) is None:
                    self._begin(frame)
                else:
                    self._row, self._received = learned.row, SIZE_FIELD + len(frame)
                    if isinstance(response, Later):
                        self.state = ConnectionState.WORKING
                    else:
                        self.give(*response)
                if self.state is not ConnectionState.READING:
                    break
            else:
                self._queue()
        except (InvalidRequestError, UnsupportedVersionError) as error:
            self._shared.metrics.malformed += 1
            self._lose(error)
        except Exception as error:
            log.error("the connection of %s was closed", self.peer, exc_info=error)
            self.close()
        finally:
            self._is_serving = False
            frames.keep()

    def _queue(self) -> None:
        self.state = ConnectionState.QUEUED
        self._shared.loop.soon(self._go_on)

    def _go_on(self) -> None:
        if self.state is ConnectionState.QUEUED:
            self.state = ConnectionState.READING
            reads, self._reads_next = self._reads_next, False
            if reads:
                self._read()
            else:
                self._serve()

    def _begin(self, frame: memoryview) -> None:
        shared = self._shared
        self._received = SIZE_FIELD + len(frame)
        self.state = ConnectionState.WORKING
        is_shared = self._frames.is_shared
        later = exchange.begin(frame, shared.node, shared.handlers, self, self.answer)
        if later is not None and is_shared and later.api is Api.PRODUCE:
            self._frames.keep()
            # The request's batches are views of the shared buffer. `leave` makes another shared buffer for
            # later requests.
            shared.scratch.leave()

    def _wait_for_more(self) -> None:
        """Take memory for the incomplete request, and wait for its other bytes. If there is no memory, wait
        for memory.
        """
        wanted = self._frames.wanted
        if wanted:
            if not self._shared.memory.take(wanted, self._fed):
                self.state = ConnectionState.STARVING
                return
            self._memory = wanted
            self._frames.begin()
        if self._events & IN != IN:
            self._want(self._events | IN)
        if self._wire is not None and self._wire.has_more:
            self._reads_next = True
            self._queue()

    def _fed(self) -> None:
        """Try again to take memory for a large request. Called when some memory is free."""
        if self.state is ConnectionState.STARVING:
            self._queue()

    # --- answers --------------------------------------------------------------------------

    def answer(self, api: Api, version: int, correlation_id: int, body: Any) -> None:
        """Send the response to the current request; send nothing if `body` is None. Views of the request's
        bytes are invalid after the call.
        """
        self._row = row = self._shared.metrics.rows[api]
        if not self.is_open:
            exchange.release(body)
            self._count(0)
            return
        if body is None:
            self._count(0)
            self._finish()
            return
        try:
            out, slices = write_response(api, version, correlation_id, body)
        except Exception as error:
            log.error("%s could not be answered", api.message, exc_info=error)
            exchange.release(body)
            self._count(0)
            self.close()
            return
        row.tallies[version](body, row)
        self.mute(getattr(body, "throttle_time_ms", 0))
        self.give(out, slices)

    def give(self, out: bytearray, slices: Slices, sent: int = 0) -> None:
        """Send the response to the current request. `out` and `slices` are the bytes and file stretches that
        were not sent yet; `sent` is the number of bytes of the response that were sent before.
        """
        self.state = ConnectionState.WRITING
        size = SIZE_FIELD + _SIZE.unpack_from(out)[0] if slices else sent + len(out)
        try:
            count = self._outgoing.give(self._sock, out, slices)
        except (OSError, EOFError) as error:
            self._count(0)
            self._lose(error)
            return
        # This is the code of `_count`. It is repeated here to save a call.
        if self._row is not None:
            _count(self._row.counts_at, self._received, size, self.active_at)
            self._row = None
        self._sent(count)

    def answered(self, size: int) -> None:
        """Count the current request as answered. The answer's `size` bytes were written to the socket."""
        self._count(size)
        self.active_at = self._shared.loop.now
        self._finish()

    def _count(self, sent: int) -> None:
        """Count the current request, and the `sent` bytes of its answer."""
        if self._row is not None:
            _count(self._row.counts_at, self._received, sent, self.active_at)
            self._row = None

    def row(self, api: Api) -> ApiMetrics:
        """Return the counts of an API's requests."""
        return self._shared.metrics.rows[api]

    def _lose(self, error: Exception) -> None:
        if isinstance(error, InvalidRequestError | UnsupportedVersionError):
            self._warn("request", "a request can't be read: %s", error)
        # There is no warning, because the client has only disconnected.
        else:
            log.debug("the connection of %s was closed: %s", self.peer, error)
        self.close()

    def _warn(self, kind: str, why: str, *args: object) -> None:
        notices = self._shared.node.part(Notices)
        notices.log(kind, self.peer, f"the connection of %s was closed: {why}", self.peer, *args)

    def _send(self) -> None:
        try:
            count = self._outgoing.send(self._sock)
        except (OSError, EOFError) as error:
            self._lose(error)
            return
        self._sent(count)

    def _sent(self, count: int) -> None:
        if count:
            self.active_at = self._shared.loop.now
        if self._outgoing:
            self._want(self._events | OUT)
        else:
            self._finish()

    def _finish(self) -> None:
        """Read the next request as soon as the client's quota allows this (KIP-219). Called when an answer
        was sent.
        """
        if self._memory:
            self._give_memory()
        if self._shared.is_ending:
            self.close()
        elif self._muted_until:
            self.state = ConnectionState.THROTTLED
            self._want(self._events & ~OUT)
            self._shared.loop.later(self._muted_until - self._shared.loop.now, self._unmute)
        else:
            self._resume()

    def mute(self, milliseconds: int) -> None:
        """Set the time, in ms, that must pass before the next request is read."""
        self._muted_until = self._shared.loop.now + milliseconds / 1000 if milliseconds > 0 else 0.0

    def _unmute(self) -> None:
        if self.state is ConnectionState.THROTTLED:
            self._muted_until = 0.0
            # The time in which the client was throttled does not count as idle time.
            self.active_at = self._shared.loop.now
            self._resume()

    def _resume(self) -> None:
        self.state = ConnectionState.READING
        if not self._is_serving:
            self._want(IN)
            if not self._frames.is_empty or (self._wire is not None and self._wire.has_more):
                self._queue()

    def note_acknowledged(self) -> None:
        """Count TCP acknowledgements of the client as activity."""
        # Writability would show the client's activity too late: a socket becomes writable only when a third
        # of its buffer is free, and with a slow client this takes seconds.
        count = taken(self._sock)
        if count > self._taken:
            self.active_at, self._taken = self._shared.loop.now, count

    # --- the end --------------------------------------------------------------------------

    def end_if_idle(self) -> None:
        """Close the connection, unless a request is being answered: then `_finish` closes the connection
        after the answer.
        """
        if self.state not in (ConnectionState.WORKING, ConnectionState.WRITING):
            self.close()

    def send_last(self, data: bytearray) -> None:
        """Send the bytes of `data` in place of an answer, then close the connection. Bytes that the socket
        does not take at once are lost.
        """
        if self.is_open:
            self._outgoing.put(data, [])
            with suppress(OSError):
                self._outgoing.send(self._sock)
            self.close()

    def when_closed(self, call: Callable[[], object]) -> None:
        """Register a function that is called when the connection is closed."""
        self._farewells.append(call)

    def close(self) -> None:
        """Close the connection, even if its current request is not answered."""
        if not self.is_open:
            return
        if self._handshake is not None:
            self._handshake.abandon()
        elif self._wire is not None and not self._outgoing:
            with suppress(OSError):
                self._sock.send(self._wire.farewell())
        self._set_up()
        # The handshake and `learned` refer to this connection, and this connection refers to them. Such a
        # cycle would stay in memory until the next garbage collection.
        self._handshake = self.learned = None
        if self.sasl is not None:
            self.sasl.abandon()
            self._shared.metrics.failed += self.sasl.has_failed
        self.is_open, self.state = False, ConnectionState.CLOSED
        self._shared.loop.remove(self._sock)
        self._outgoing.release()
        # A parked request refers to this connection until the request's timeout. These lines free the 70 KB
        # of TLS at once.
        self._wire, self._outgoing = None, Outgoing()
        self._give_memory()
        self._closed(self)
        farewells, self._farewells = self._farewells, []
        for call in farewells:
            call()

    def _give_memory(self) -> None:
        if self._memory:
            taken, self._memory = self._memory, 0
            self._shared.memory.give(taken)
