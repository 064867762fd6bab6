"""`Exchange`: one request and its answer: which handler answers it, and what is answered where that fails.

Threads: the loop's only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from segstore.errors import UnsupportedVersionError
from segstore.logger import Logger
from segstore.protocol.codec import Struct, structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api, RequestHeader, read_body, read_header, tells_errors
from segstore.server.handlers.versions import unsupported
from segstore.server.request import LATER, Channel, Handler, Request

log = Logger("segstore")

Send = Callable[[Api, int, int, Any], None]
"""Sends a response, by its api, version, correlation id and body, which is None where there is none."""


class Exchange:
    """A request that was read; `__call__` takes the response's body, once, and has it sent."""

    __slots__ = ("_is_answered", "_send", "api", "correlation_id", "version")

    def __init__(self, api: Api, version: int, correlation_id: int, send: Send) -> None:
        self.api, self.version, self.correlation_id = api, version, correlation_id
        self._send, self._is_answered = send, False

    def __call__(self, body: Any) -> None:
        if self._is_answered:
            release(body)
            log.error("a request of %s was answered twice", self.api.message)
            return
        self._is_answered = True
        self._send(self.api, self.version, self.correlation_id, body)


def begin(
    frame: memoryview, node: Any, handlers: Mapping[Api, Handler], channel: Channel, send: Send
) -> Exchange | None:
    """Read a request and call its handler. Returns the exchange where the answer comes later; else it was
    sent.

    Raises InvalidRequestError, UnsupportedVersionError for what ends the connection; any exception of the
    handler where the response has no place for an error.
    """
    header = read_header(frame)
    api = header.api
    if channel.sasl is not None:
        channel.sasl.check(api)
    handler = handlers.get(api)
    if header.body_at < 0 or handler is None:
        _refuse(header, send)
        return None
    version, correlation_id = header.version, header.correlation_id
    exchange = Exchange(api, version, correlation_id, send)
    body = read_body(header, frame)
    learnable = frame if channel.sasl is None else None  # a session's end is looked for with each request
    request = Request(
        api, version, header.client_id, body, channel, exchange, correlation_id, learnable, header.body_at
    )
    try:
        body = handler(node, request)
    except Exception as error:
        if not tells_errors(api, version):
            raise
        log.error("%s could not be answered: %s", api.message, error, exc_info=error)
        body = structs(f"{api.message}Response")(error_code=Code.UNKNOWN_SERVER_ERROR)
    if body is LATER:
        return exchange
    exchange(body)
    return None


def _refuse(header: RequestHeader, send: Send) -> None:
    """Answer what has no handler: ApiVersions of a later client in version 0, which tells the client what to
    ask (KIP-511); for all else there is no form of an answer that its client could read.
    """
    api = header.api
    if api is not Api.API_VERSIONS:
        raise UnsupportedVersionError(f"{api.message} version {header.version} is not served")
    send(api, 0, header.correlation_id, unsupported())


def release(body: Any) -> None:
    """Release the stretches of files in a body that is not sent."""
    if isinstance(body, Struct):
        for name in body.__slots__:
            release(getattr(body, name, None))
    elif isinstance(body, list):
        for each in body:
            release(each)
    elif hasattr(body, "fileno"):
        body.release()
