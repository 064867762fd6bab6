"""Functions that let a worker thread make an answer. They are for requests whose handling waits for disks,
such as those that create topics, open logs or commit offsets. If a function that was passed to them raises,
the request is answered with an error, or its connection is closed. Threads: a worker calls `run`; every other
function and callback runs in the loop's thread.
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
    """Call `run` in a worker thread, and answer with the body that `run` returns. If `run` raises, the body
    is `failed(error)`. If `failed` is None, `fail(request, error)` is called instead. `waits` says that `run`
    may wait for replicas: such calls have a separate pool of threads.
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
    """Call `run` in a worker thread, then `done` in the loop's thread, with what `run` returned or raised.
    `done` answers the request at once or later. `waits` says that `run` may wait for replicas: such calls
    have a separate pool of threads.
    """
    node.loop.work(run, guarded(request, done), waits)
    return LATER


def guarded(request: Request, call: Callable[P, object]) -> Callable[P, None]:
    """Return a function that calls `call`, and passes an exception of `call` to `fail`."""

    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            call(*args, **kwargs)
        except Exception as error:
            fail(request, error)

    return run


def fail(request: Request, error: BaseException) -> None:
    """Log an unexpected error, and answer its error code. If the response has no field for an error code,
    close the connection.
    """
    log.error("%s of %s failed: %r", request.api.name, request.channel.peer, error, exc_info=error)
    if has_error_code(request.api, request.version):
        request.answer(structs(f"{request.api.message}Response")(error_code=code_of(error)))
    else:
        request.channel.close()
