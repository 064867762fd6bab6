"""`Exchange`: a request that waits for its answer. `begin` decodes a request and calls its handler.

Threads: the loop's thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from segstore.errors import UnsupportedVersionError
from segstore.logger import Logger
from segstore.protocol.codec import Struct, structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api, RequestHeader, has_error_code, read_body, read_header
from segstore.server.handlers.versions import unsupported
from segstore.server.request import LATER, Channel, Handler, Request

log = Logger("segstore")

Send = Callable[[Api, int, int, Any], None]
"""(api, version, correlation id, body): sends a response. If the body is None, no response is sent (acks=0).
"""


class Exchange:
    """A decoded request that waits for its answer. `__call__(body)` sends the response. A second call sends
    nothing.
    """

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
    """Decode a request and call its handler. Return None if the request needs nothing more, else the
    exchange, which the handler answers later. Raises InvalidRequestError, UnsupportedVersionError, and the
    handler's exception if the response has no error code. The caller then closes the connection.
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
    # With SASL no request may be learned: each request must reach `channel.sasl.check`, which finds expired
    # SASL sessions.
    learnable = frame if channel.sasl is None else None
    request = Request(
        api, version, header.client_id, body, channel, exchange, correlation_id, learnable, header.body_at
    )
    try:
        body = handler(node, request)
    except Exception as error:
        if not has_error_code(api, version):
            raise
        log.error("%s could not be answered: %s", api.message, error, exc_info=error)
        body = structs(f"{api.message}Response")(error_code=Code.UNKNOWN_SERVER_ERROR)
    if body is LATER:
        return exchange
    exchange(body)
    return None


def _refuse(header: RequestHeader, send: Send) -> None:
    """Answer an ApiVersions request of an unknown version in version 0 (KIP-511). Raise
    UnsupportedVersionError if the request is for another API.
    """
    api = header.api
    if api is not Api.API_VERSIONS:
        raise UnsupportedVersionError(f"{api.message} version {header.version} is not served")
    send(api, 0, header.correlation_id, unsupported())


def release(body: Any) -> None:
    """Release the file stretches of a response body that is not sent."""
    if isinstance(body, Struct):
        for name in body.__slots__:
            release(getattr(body, name, None))
    elif isinstance(body, list):
        for each in body:
            release(each)
    elif hasattr(body, "fileno"):
        body.release()
