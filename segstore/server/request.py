"""`Request` and `Channel`: a decoded request, and the connection that takes its answer."""

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
"""The principal of a client that has not authenticated (Kafka: KafkaPrincipal.ANONYMOUS)."""


class Later:
    """The type of LATER: a handler returns it if the answer comes later, by `Request.answer`."""


LATER: Final = Later()


class Answered:
    """The type of ANSWERED: a `LearnedRequest` returns it if the socket has taken the whole answer."""


ANSWERED: Final = Answered()


Response = tuple[bytearray, Slices]
"""The result of `write_response`: an encoded response with its size, and its file stretches."""
SHORT = 4096
"""If an answer's file stretches have at most so many bytes in all, they are read into memory, and the answer
is sent by one system call. Longer stretches are sent from their files, by a system call for each.
"""
Received = tuple[int, "Response | Answered | Later | None", int]
"""The result of `LearnedRequest.receive`: (received, response, sent).

`received`: number of received bytes, 0 at the end of the stream, or -errno. `response`: the unsent part of
the answer; ANSWERED if all of it was sent; LATER if the channel sends it later; None if the received bytes
were not handled. `sent`: number of bytes of the answer that the socket has taken.
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
    """The connection of a request."""

    principal: str
    """The authenticated principal; ANONYMOUS without authentication."""
    peer: str
    """The client's address, without its port."""
    is_open: bool
    sasl: SaslSession | None
    """The SASL session of the connection, None if the listener does not use SASL."""
    learned: LearnedRequest | None
    """Set by a handler to answer later requests with similar bytes before they are decoded."""

    def when_closed(self, call: Callable[[], object]) -> None:
        """Register a call, made in the loop's thread when the connection is closed."""

    def close(self) -> None:
        """Close the connection without an answer."""

    def answer(self, api: Api, version: int, correlation_id: int, body: Any) -> None:
        """Send the response to the current request, or nothing if `body` is None (acks=0)."""

    def give(self, out: bytearray, slices: Slices, sent: int = 0) -> None:
        """Send an encoded response, a result of `write_response`, to the current request. If the socket has
        taken `sent` bytes of the response already, `out` and `slices` are the unsent part.
        """

    def answered(self, size: int) -> None:
        """Complete the current request, whose response of `size` bytes the socket has taken."""

    def row(self, api: Api) -> ApiCounts:
        """Return the counts of an API's requests."""

    def mute(self, milliseconds: int) -> None:
        """Read the next request only after the current answer, and after this time has passed."""

    def send_last(self, data: bytearray) -> None:
        """Send these bytes instead of an answer, as far as the kernel takes them at once, then close the
        connection.
        """


@dataclass(eq=False)
class Request:
    """A decoded request. `body` is a `structs(f"{api.message}Request")`; memoryviews in `body` refer to the
    connection's buffer, and are valid until the request is answered.

    `answer` takes the response's body, or None for no response (acks=0), once and in the loop's thread; it
    does nothing if the connection is closed.

    `frame` is the encoded request without its size, from which a handler may make the `learned` of the
    channel. If the handler must not do so, `frame` is None. `body_at` is the position of the body in `frame`.
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
"""A handler: (node, request) -> response's body, None for no response, or LATER. It is called in the loop's
thread, and must not block.
"""
