"""What a `Repeat` tells of a request that C has received, and perhaps answered. Threads: the loop's."""

from __future__ import annotations

from segstore.server.request import ANSWERED, Received
from segstore.storage.log.exchange import NativeExchange


def exchanged(exchange: NativeExchange, done: bool | None) -> Received | None:
    """Return what `Repeat.receive` returns; `done` is what the log has told."""
    if done is None:
        return None
    c = exchange.c
    if not done:
        return c.received, None, 0
    sent: int = c.sent
    return c.received, ANSWERED if sent == c.answered else (exchange.rest, []), sent
