"""Adds authorization to handlers: a request is checked before its handler is called. Threads: the loop's
thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from segstore.errors import InvalidRequestError
from segstore.protocol.codec import Struct
from segstore.server.apis import Api
from segstore.server.node import Node
from segstore.server.request import LATER, Handler, Request

from .judge import Caller, Mend


def judged(handlers: Mapping[Api, Handler]) -> dict[Api, Handler]:
    """Return handlers that first check each request with the node's authorizer, if the node has one."""
    return {api: partial(_handle, handler) for api, handler in handlers.items()}


def _handle(handler: Handler, node: Node, request: Request) -> Any:
    if node.authorizer is None:
        return handler(node, request)
    # The judges are imported here and not above, because their module imports the code of groups.
    from .judges import JUDGES

    judge = JUDGES.get(request.api)
    if judge is None:
        raise InvalidRequestError(f"{request.api.message} is not judged, so nobody may ask it")
    verdict = judge(Caller(node, node.authorizer, request.channel.principal), request)
    if verdict is None:
        return handler(node, request)
    return verdict if isinstance(verdict, Struct) else _mended(handler, node, request, verdict)


def _mended(handler: Handler, node: Node, request: Request, mend: Mend) -> Any:
    answer, request.frame = request.answer, None
    request.answer = lambda body: answer(mend(body))
    body = handler(node, request)
    return body if body is LATER else mend(body)
