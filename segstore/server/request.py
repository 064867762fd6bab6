"""A request on its way to a handler, and its answer's way back."""

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
"""The principal of a client that has not said who it is (Kafka: KafkaPrincipal.ANONYMOUS)."""


class Later:
    """What a handler returns whose answer comes later, by `Request.answer`."""


LATER: Final = Later()


class Answered:
    """What a `LearnedRequest` returns whose answer the socket has taken."""


ANSWERED: Final = Answered()


Response = tuple[bytearray, Slices]
"""A response with its size, and where stretches of files belong in it, as `write_response` returns both."""
SHORT = 4096
"""A stretch of a file of at most so many bytes is read, and sent with what lies around it: one call for all
of it costs less than three.
"""
Received = tuple[int, "Response | Answered | Later | None", int]
"""How many bytes came, 0 where no more will come, -errno where that failed; the rest of the answer, ANSWERED
where there is none, LATER where it comes by the channel, or None where what came is not done yet; and how
many bytes of the answer the socket has taken.
"""


class ApiCounts(Protocol):
    """Counts of the requests of one API."""

    counts: Any
    """A `seg_counts *` (exchange.h)."""
    counts_at: int
    """Its address."""

    def add_error(self, code: int) -> None:
        """Count an error code of a response that is not sent by `Channel.answer`."""


class Channel(Protocol):
    """The connection that a request came by."""

    principal: str
    """Who has authenticated; ANONYMOUS if nobody had to."""
    peer: str
    """The client's address, without its port."""
    is_open: bool
    sasl: SaslSession | None
    """How far the client has come in authenticating; None where it does not have to by SASL."""
    learned: LearnedRequest | None
    """Sees each request before it is decoded: a handler sets this for requests like the present one."""

    def when_closed(self, call: Callable[[], object]) -> None:
        """Have `call` called in the loop's thread once the connection has ended."""

    def close(self) -> None:
        """Close the connection without an answer."""

    def answer(self, api: Api, version: int, correlation_id: int, body: Any) -> None:
        """Send the response to the request that is under way; None: there is none."""

    def give(self, out: bytearray, slices: Slices, sent: int = 0) -> None:
        """Send the response to the request that is under way, as `write_response` returns it, or its rest
        after `sent` bytes that the socket has taken.
        """

    def answered(self, size: int) -> None:
        """Note that the socket has the response to the request that is under way, of `size` bytes."""

    def row(self, api: Api) -> ApiCounts:
        """Return where requests of an API are counted."""

    def mute(self, milliseconds: int) -> None:
        """Read no more requests until so long from now, nor before the present one is answered."""

    def send_last(self, data: bytearray) -> None:
        """Send these bytes instead of an answer, as far as the kernel takes them at once, and close the
        connection behind them.
        """


@dataclass(eq=False)
class Request:
    """One request. `body` is of the class `structs(f"{api.message}Request")`; memoryviews in it are of the
    connection's buffer, and good until the request is answered.

    `answer` takes the response's body, or None where there is none (acks=0), in the loop's thread, once; a
    connection that has ended meanwhile swallows it.

    `frame` is the request as it came, without its size, from which a handler may learn, and `body_at` is the
    position of the body in it; None if each request has to come to its handler.
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
"""Called with the node and a request, in the loop's thread, which must not be held up. Returns the response's
body, None where there is no response, or LATER.
"""
