"""`LearnedRequest` answers requests that a connection repeats. The requests differ only in the holes of a
template: the bytes of a few numbers, or of a batch.

Threads: the loop's thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from segstore.server.request import ANSWERED, Later, Received, Request, Response
from segstore.storage.log.exchange import NativeExchange

if TYPE_CHECKING:
    from segstore.server.request import ApiCounts


class LearnedRequest(ABC):
    """Answers requests of a connection without decoding them. `row` counts the requests. `is_like` says
    whether the last request was similar to the learned request. If `is_like` is False, the handler may
    replace this object. If `exchange` is set, the C code may receive and answer requests.
    """

    def __init__(self, request: Request) -> None:
        self.request, self.is_like = request, False
        self.row: ApiCounts = request.channel.row(request.api)
        self.exchange: NativeExchange | None = None

    def __call__(self, frame: memoryview) -> Response | Later | None:
        """Answer a request; `frame` is the request without its size field. Return the whole response, or
        LATER if `Channel.give` will send the response. Return None, without any effect, if the handler must
        answer.
        """
        holes = self.match(frame)
        self.is_like = holes is not None
        return None if holes is None else self.answer(holes)

    @abstractmethod
    def match(self, frame: memoryview) -> tuple[Any, ...] | None:
        """Return the values in the holes of a request (the fields in which similar requests may differ), None
        if a byte outside of the holes differs from the template.
        """

    @abstractmethod
    def answer(self, holes: tuple[Any, ...]) -> Response | Later | None:
        """Answer a request whose variable fields have the values `holes`. Return what `__call__` returns."""

    def receive(self, sock: int, memory: Any) -> Received | None:
        """Receive a request into `memory`, a `uint8_t[]`, and answer it, both in one call of C code that does
        not block. Return a `Received`. Return None, and receive nothing, if the C code can't be used.
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
        """Let the C code receive and answer a request. Return True if the C code has answered the request,
        False if it has only received the request. Return a response if the caller must send this response.
        Return None if nothing was received.
        """
        raise NotImplementedError
