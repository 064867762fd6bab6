"""Answers that are worked out in a worker thread, since they wait for disks: topics that are made, logs that
are opened, commits. However that ends, the request is answered, or its connection closed.

Threads: all is called in the loop's thread, but for `run`, which a worker calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec

from segstore.logger import Logger
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import code_of
from segstore.server.apis import tells_errors
from segstore.server.node import Node
from segstore.server.request import LATER, Later, Request

log = Logger("segstore")
P = ParamSpec("P")


def in_worker(
    node: Node,
    request: Request,
    run: Callable[[], Any],
    failed: Callable[[BaseException], Any] | None = None,
    waits: bool = False,
) -> Later:
    """Have `run` work out the response's body in a worker thread. Expected errors are in the body that it
    returns; for any other `failed` makes the body, and without `failed` it is told as by `fail`. `waits`: see
    `Loop.work`.
    """

    def done(result: Any) -> None:
        if not isinstance(result, BaseException):
            request.answer(result)
        elif failed is not None:
            request.answer(failed(result))
        else:
            fail(request, result)

    return work(node, request, run, done, waits)


def work(
    node: Node,
    request: Request,
    run: Callable[[], Any],
    done: Callable[[Any], object],
    waits: bool = False,
) -> Later:
    """Have `run` called in a worker thread, and then `done` with its result or exception, which answers the
    request, now or later. `waits`: see `Loop.work`.
    """
    node.loop.work(run, guarded(request, done), waits)
    return LATER


def guarded(request: Request, call: Callable[P, object]) -> Callable[P, None]:
    """Return a call that answers the request and, where it raises, tells that as by `fail`: nobody else would
    answer.
    """

    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            call(*args, **kwargs)
        except Exception as error:
            fail(request, error)

    return run


def fail(request: Request, error: BaseException) -> None:
    """Log an error that nobody expects, and answer with its code where the response has a place for one; else
    the connection ends.
    """
    log.error("%s of %s failed: %r", request.api.name, request.channel.peer, error, exc_info=error)
    if tells_errors(request.api, request.version):
        request.answer(structs(f"{request.api.message}Response")(error_code=code_of(error)))
    else:
        request.channel.close()
