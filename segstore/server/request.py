"""`Request` and `Channel`: a decoded request, and the connection by which it came and which sends its
answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from segstore.protocol.codec import Slices

from .apis import Api

if TYPE_CHECKING:
    from .learned.request import LearnedRequest
    from .security.sasl import SaslSession

ANONYMOUS: Final = "ANONYMOUS"
"""The principal of a client that has not authenticated itself (Kafka: KafkaPrincipal.ANONYMOUS)."""


class Later:
    """The type of LATER: a handler returns LATER if it will call `Request.answer` later."""


LATER: Final = Later()


class Answered:
    """The type of ANSWERED: a `LearnedRequest` returns ANSWERED if it has written the complete answer to the
    socket.
    """


ANSWERED: Final = Answered()


Response = tuple[bytearray, Slices]
"""The result of `write_response`: the bytes of a response with its size field, and its file stretches."""
SHORT = 4096
"""If an answer's file stretches together have at most this number of bytes, they are read into memory, and
the answer is sent by one system call. If they have more, each stretch is sent from its file by a system call
of its own.
"""
Received = tuple[int, "Response | Answered | Later | None", int]
"""The result of `LearnedRequest.receive`: (received, response, sent).

`received`: the number of received bytes, 0 at the end of the stream, or -errno. `response`: the unsent part
of the answer; ANSWERED if the complete answer was sent; LATER if the channel sends the answer later; None if
the received bytes were not handled. `sent`: the number of bytes of the answer that were written to the
socket.
"""


class ApiCounts(Protocol):
    """The counts of one API's requests."""

    counts: Any
    """The `seg_counts *` in which the C code counts (exchange.h)."""
    counts_at: int
    """The address of `counts`."""

    def add_error(self, code: int) -> None:
        """Count an error code of a response that is not sent by `Channel.answer`."""


class Channel(Protocol):
    """The connection by which a request came."""

    principal: str
    """The principal of the client; ANONYMOUS if the client has not authenticated itself."""
    peer: str
    """The client's address, without its port."""
    is_open: bool
    sasl: SaslSession | None
    """The SASL session of the connection, None if the listener does not use SASL."""
    learned: LearnedRequest | None
    """A handler sets this object. The object answers later requests that have similar bytes, and does not
    decode them.
    """

    def when_closed(self, call: Callable[[], object]) -> None:
        """Register a function that the loop's thread calls when the connection is closed."""

    def close(self) -> None:
        """Close the connection without an answer."""

    def answer(self, api: Api, version: int, correlation_id: int, body: Any) -> None:
        """Send the response to the current request. Send nothing if `body` is None (acks=0)."""

    def give(self, out: bytearray, slices: Slices, sent: int = 0) -> None:
        """Send an encoded response to the current request; `out` and `slices` are a result of
        `write_response`. If `sent` bytes of the response were already written to the socket, `out` and
        `slices` are the unsent part.
        """

    def answered(self, size: int) -> None:
        """Complete the current request, whose response of `size` bytes was written to the socket."""

    def row(self, api: Api) -> ApiCounts:
        """Return the counts of an API's requests."""

    def mute(self, milliseconds: int) -> None:
        """Read the next request only when the current request is answered and this time has passed."""

    def send_last(self, data: bytearray) -> None:
        """Send the bytes of `data` in place of an answer, then close the connection. Bytes that the socket
        does not take at once are lost.
        """


@dataclass(eq=False)
class Request:
    """A decoded request. `body` is a `structs(f"{api.message}Request")`; memoryviews in `body` refer to the
    connection's buffer, and are valid until the request is answered. `answer(response's body)` sends the
    response; if the body is None, nothing is sent (acks=0). `answer` must be called once, in the loop's
    thread. If the connection is closed, the call does nothing. `frame` is the encoded request without its
    size field. A handler may make the `learned` of the channel from it. If the handler must not do so,
    `frame` is None. `body_at` is the position of the body in `frame`.
    """

    api: Api
    version: int
    client_id: str | None
    body: Any
    channel: Channel
    answer: Callable[[Any], None]
    correlation_id: int = 0
    frame: memoryview | None = None
    body_at: int = 0


Handler = Callable[[Any, Request], Any]
"""A handler: (node, request) -> the response's body; None if there is no response; LATER if the response is
sent later. The handler is called in the loop's thread, and must not block.
"""
