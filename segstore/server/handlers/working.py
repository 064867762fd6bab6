"""Answers that a worker thread makes, because making them waits for disks: of requests that create topics,
open logs or commit offsets.

If a call that was passed to these functions raises, the request is answered with an error, or its connection
is closed. Threads: a worker calls `run`; every other function and callback runs in the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec

from segstore.logger import Logger
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import code_of
from segstore.server.apis import has_error_code
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
    """Call `run` in a worker thread, and answer with the body that it returns.

    If `run` raises, the body is `failed(error)`; without `failed`, the function `fail` logs the error and
    answers its code. `waits` says that the job may wait for replicas; it then runs in a separate pool.
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
    """Call `run` in a worker thread, then `done(result or exception)` in the loop's thread, which answers the
    request at once or later. `waits` says that the job may wait for replicas; it then runs in a separate
    pool.
    """
    node.loop.work(run, guarded(request, done), waits)
    return LATER


def guarded(request: Request, call: Callable[P, object]) -> Callable[P, None]:
    """Return `call` wrapped so that an exception is passed to `fail`, which answers the request."""

    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            call(*args, **kwargs)
        except Exception as error:
            fail(request, error)

    return run


def fail(request: Request, error: BaseException) -> None:
    """Log an unexpected error, and answer its code, or close the connection if the response has none."""
    log.error("%s of %s failed: %r", request.api.name, request.channel.peer, error, exc_info=error)
    if has_error_code(request.api, request.version):
        request.answer(structs(f"{request.api.message}Response")(error_code=code_of(error)))
    else:
        request.channel.close()
