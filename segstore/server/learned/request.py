"""`LearnedRequest`: requests that differ from the last one of their connection in the holes of a template
alone.

Threads: the loop's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from segstore.server.request import ANSWERED, Later, Received, Request, Response
from segstore.storage.log.exchange import NativeExchange

if TYPE_CHECKING:
    from segstore.server.request import ApiCounts


class LearnedRequest(ABC):
    """A connection asks this before it decodes a request. `row` counts the requests; `is_like` says of the
    last one whether it matched. `exchange`, once it is set, has C receive and answer such requests.
    """

    def __init__(self, request: Request) -> None:
        self.request, self.is_like = request, False
        self.row: ApiCounts = request.channel.row(request.api)
        self.exchange: NativeExchange | None = None

    def __call__(self, frame: memoryview) -> Response | Later | None:
        """Answer a request, given without its size: with the whole response, or LATER if `Channel.give` sends
        the response. None, and nothing is done, if the request's handler must answer.
        """
        holes = self.match(frame)
        self.is_like = holes is not None
        return None if holes is None else self.answer(holes)

    @abstractmethod
    def match(self, frame: memoryview) -> tuple[Any, ...] | None:
        """Return what is in the holes of a request; None if another byte differs."""

    @abstractmethod
    def answer(self, holes: tuple[Any, ...]) -> Response | Later | None:
        """Answer a request with these holes, as `__call__` does."""

    def receive(self, sock: int, memory: Any) -> Received | None:
        """Receive from a socket into a `uint8_t[]`, and answer, by one call of C; the socket is not waited
        for. None, and nothing is received, if the connection must receive.
        """
        exchange = self.exchange
        if exchange is None:
            return None
        exchange.begin(memory)
        done = self.exchanged(sock, exchange)
        if done is None:
            return None
        c = exchange.c
        if not isinstance(done, bool):
            return c.received, done, 0
        if not done:
            return c.received, None, 0
        sent: int = c.sent
        return c.received, ANSWERED if sent == c.answered else (exchange.rest, []), sent

    def exchanged(self, sock: int, exchange: NativeExchange) -> Response | bool | None:
        """Return whether C has answered, as the log's `exchange_produce` and `exchange_fetch` do, or the
        response to send in place of C's. None, and nothing is received, if C may not answer.
        """
        raise NotImplementedError
