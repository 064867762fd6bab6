"""Answers that are worked out in a worker thread, since they wait for disks: topics that are made, logs that
are opened.

Threads: `in_worker` is called in the loop's thread; its `run` is called in a worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from segstore.logger import Logger
from segstore.server.apis import tells_errors
from segstore.server.error_codes import code_of
from segstore.server.node import Node
from segstore.server.protocol.codec import structs
from segstore.server.request import LATER, Later, Request

log = Logger("segstore")


def in_worker(node: Node, request: Request, run: Callable[[], Any]) -> Later:
    """Have `run` work out the response's body in a worker thread. Expected errors are in the body that it
    returns; any other is logged, and answered by its code where the response has a place for one; else the
    connection ends.
    """

    def done(result: Any) -> None:
        if not isinstance(result, BaseException):
            request.answer(result)
            return
        log.error("%s of %s failed: %r", request.api.name, request.channel.peer, result)
        if tells_errors(request.api, request.version):
            request.answer(structs(f"{request.api.message}Response")(error_code=code_of(result)))
        else:
            request.channel.close()

    node.loop.work(run, done)
    return LATER
