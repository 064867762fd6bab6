"""`ServerConnection`: one client. Its requests are answered one after the other, in order (Kafka:
SocketServer, KafkaChannel).

    SHAKING -> READING                 with TLS
    READING -> WORKING -> WRITING -> THROTTLED -> READING        any -> CLOSED
    READING -> QUEUED -> READING       has requests that wait until other connections have had their turn
    READING -> STARVING -> QUEUED      while there is no memory for a large request

Bytes are read in READING only: what a client sends meanwhile stays in the kernel, which stops the client. The
kernel is told not to report such bytes when it first does, so a client that waits for its answers costs no
system call for that. With TLS bytes may wait in memory too, of which no event tells. Threads: the loop's
only.
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
    """What a connection does now."""

    SHAKING = auto()
    READING = auto()
    QUEUED = auto()
    STARVING = auto()
    WORKING = auto()
    WRITING = auto()
    THROTTLED = auto()
    CLOSED = auto()


class ServerConnection:
    """See `segstore.server.request.Channel`. `active_at` is when bytes last came or went, as `Loop.now`;
    `closed` is called with the connection when it has ended.
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
        self._events = IN  # what the loop is asked for
        self._taken = 0  # bytes that the client had acknowledged when somebody looked
        self._memory = 0  # bytes taken of the shared memory
        self._muted_until = 0.0
        self._farewells: list[Callable[[], object]] = []
        self._is_serving = self._reads_next = False
        self._row: ApiCounts | None = (
            None  # where the request under way counts, if that is known before its answer
        )
        self._received = 0  # its bytes; it came at `active_at`

    def open(self) -> None:
        """Begin to read. Raises OSError."""
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

    # --- who the client is ----------------------------------------------------------------

    def _shaken(self, error: BaseException | None) -> None:
        """The TLS handshake has ended."""
        assert self._wire is not None
        if error is not None:
            if isinstance(error, ConnectionError):  # gone, as a balancer that looks for a listener
                log.debug("the connection of %s was closed in its TLS handshake: %s", self.peer, error)
            else:
                self._shared.metrics.failed += 1
                self._tell("TLS", "its TLS handshake failed: %s", error)
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
        """Judge the client's next authentication by other users, and have its next request decoded: a
        `LearnedRequest` was judged by the allow list before.
        """
        self.learned = None
        if self.sasl is not None and sasl is not None:
            self.sasl.sasl = sasl

    def _entered(self, principal: str) -> None:
        """The client has authenticated by SASL."""
        self.principal, self.learned = principal, None
        self._frames.most = self._shared.node.config.socket_request_max_bytes
        self._shared.metrics.authenticated += 1
        self._set_up()

    def _set_up(self) -> None:
        if self._setup is not None:
            self._setup.cancel()
            self._setup = None

    def _give_up(self) -> None:
        self._tell("setup", "its client took too long to authenticate")
        self.close()

    # --- events ---------------------------------------------------------------------------

    def _ready(self, events: int) -> None:
        if events == COME and self.state is ConnectionState.READING:
            self._read()
            return
        if events & GONE and not (
            self.state is ConnectionState.READING and events & IN
        ):  # what has come is read first
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
        """Leave bytes in the kernel; a client that has gone while it waited for an answer is let go. With TLS
        the message that it goes comes before its end.
        """
        if not events & RDHUP:
            self._want(self._events & ~IN | RDHUP)
        elif self.state is ConnectionState.WORKING and self._has_left():
            self.close()
        else:
            self._want(self._events & ~IN)

    def _has_left(self) -> bool:
        """Return whether the client has closed its end, and sent nothing that was not read."""
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
        """Have C receive a request that may be like the last one; return whether anything was received."""
        shared = self._shared
        try:
            taken = learned.receive(self._fd, shared.scratch.for_c)
        except Exception as error:
            log.error("the connection of %s was closed", self.peer, exc_info=error)
            self.close()
            return True
        if taken is None:
            return False
        count, told, sent = taken
        if count > 0:
            self.active_at = shared.loop.now
        if told is ANSWERED:  # and counted
            if not shared.is_ending:
                return True
        elif told is not None:
            self._row, self._received = learned.row, count
        if isinstance(told, Later):
            self.state = ConnectionState.WORKING
            return True
        self._go_on_with(count, told, sent)
        return True

    def _go_on_with(self, count: int, told: Response | Answered | None, sent: int) -> None:
        if count == -EAGAIN:
            self._want(self._events | IN)
        elif count <= 0 or isinstance(told, Answered):
            self.close()
        elif told is None:
            self._frames.received(count, self._shared.scratch)
            self._serve()
        else:
            self.give(*told, sent)

    def _serve(self) -> None:
        """Answer what has come, until a request must wait. The state is READING."""
        self._is_serving = True
        frames = self._frames
        try:
            for _ in range(REQUESTS_A_TURN):
                frame = frames.take()
                if frame is None:
                    self._wait_for_more()
                    break
                learned = self.learned
                if learned is None or (told := learned(frame)) is None:
                    self._begin(frame)
                else:
                    self._row, self._received = learned.row, SIZE_FIELD + len(frame)
                    if isinstance(told, Later):
                        self.state = ConnectionState.WORKING
                    else:
                        self.give(*told)
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
            shared.scratch.leave()  # the request has views of it: its record batches

    def _wait_for_more(self) -> None:
        """Make room for a request of which a part has come, and wait for the rest."""
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
        """There is memory again."""
        if self.state is ConnectionState.STARVING:
            self._queue()

    # --- answers --------------------------------------------------------------------------

    def answer(self, api: Api, version: int, correlation_id: int, body: Any) -> None:
        """See `Channel`. The views that the request has of its buffer end here."""
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
        """See `Channel`."""
        self.state = ConnectionState.WRITING
        size = SIZE_FIELD + _SIZE.unpack_from(out)[0] if slices else sent + len(out)
        try:
            count = self._outgoing.give(self._sock, out, slices)
        except (OSError, EOFError) as error:
            self._count(0)
            self._lose(error)
            return
        if self._row is not None:  # as `_count`, without a call
            _count(self._row.counts_at, self._received, size, self.active_at)
            self._row = None
        self._sent(count)

    def answered(self, size: int) -> None:
        """See `Channel`."""
        self._count(size)
        self.active_at = self._shared.loop.now
        self._finish()

    def _count(self, sent: int) -> None:
        """Count the request that is under way, and its answer, which the socket has now."""
        if self._row is not None:
            _count(self._row.counts_at, self._received, sent, self.active_at)
            self._row = None

    def row(self, api: Api) -> ApiMetrics:
        """See `Channel`."""
        return self._shared.metrics.rows[api]

    def _lose(self, error: Exception) -> None:
        if isinstance(error, InvalidRequestError | UnsupportedVersionError):
            self._tell("request", "a request can't be read: %s", error)
        else:  # the client has gone, or was cut off: each client may do so at any time
            log.debug("the connection of %s was closed: %s", self.peer, error)
        self.close()

    def _tell(self, kind: str, why: str, *args: object) -> None:
        notices = self._shared.node.part(Notices)
        notices.tell(kind, self.peer, f"the connection of %s was closed: {why}", self.peer, *args)

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
        """The answer is out: read the next request, when the client's quota allows it (KIP-219)."""
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
        """See `Channel`."""
        self._muted_until = self._shared.loop.now + milliseconds / 1000 if milliseconds > 0 else 0.0

    def _unmute(self) -> None:
        if self.state is ConnectionState.THROTTLED:
            self._muted_until = 0.0
            self.active_at = self._shared.loop.now  # the next request's time begins
            self._resume()

    def _resume(self) -> None:
        self.state = ConnectionState.READING
        if not self._is_serving:
            self._want(IN)
            if not self._frames.is_empty or (self._wire is not None and self._wire.has_more):
                self._queue()

    def look_what_is_taken(self) -> None:
        """Count as activity that the client has taken of what the kernel keeps for it: the kernel asks for
        more only once a third of its buffer is free, which may take a slow client seconds.
        """
        count = taken(self._sock)
        if count > self._taken:
            self.active_at, self._taken = self._shared.loop.now, count

    # --- the end --------------------------------------------------------------------------

    def end_if_idle(self) -> None:
        """Close the connection unless a request of it is being answered; it is closed after that."""
        if self.state not in (ConnectionState.WORKING, ConnectionState.WRITING):
            self.close()

    def send_last(self, data: bytearray) -> None:
        """See `Channel`."""
        if self.is_open:
            self._outgoing.put(data, [])
            with suppress(OSError):
                self._outgoing.send(self._sock)
            self.close()

    def when_closed(self, call: Callable[[], object]) -> None:
        """See `Channel`."""
        self._farewells.append(call)

    def close(self) -> None:
        """See `Channel`."""
        if not self.is_open:
            return
        if self._handshake is not None:
            self._handshake.abandon()
        elif self._wire is not None and not self._outgoing:
            with suppress(OSError):
                self._sock.send(self._wire.farewell())
        self._set_up()
        # What refers back would keep the connection until Python next looks for cycles, which comes by the
        # number of its objects.
        self._handshake = self.learned = None
        if self.sasl is not None:
            self.sasl.abandon()
            self._shared.metrics.failed += self.sasl.has_failed
        self.is_open, self.state = False, ConnectionState.CLOSED
        self._shared.loop.remove(self._sock)
        self._outgoing.release()
        # A request that waits keeps the connection until its time is over, but not some 70 KB of its TLS.
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
