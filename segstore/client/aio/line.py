"""`Line`: the thread of one asyncio client. It makes the client's blocking calls one after another.

Threads: the event loop calls `run` and `end`, any thread may call `later`; the client's calls are made in the
line's own thread. After an interrupt in the event loop a call may or may not be made. A `Line` is not a
`ThreadPoolExecutor`, which might start a second thread after an interrupt.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from segstore.errors import ClientClosedError
from segstore.threads import Shelter

T = TypeVar("T")


class Line:
    """The thread of one client. The thread stops after a call of `end`, or when the line is dropped. If
    `ended`, new calls are refused.
    """

    def __init__(self, name: str) -> None:
        self._name, self._shelter = name, Shelter(name)
        self.ended = False

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Return a future of the call's result. If the future is cancelled before the call begins, the call
        is not made. Raises ClientClosedError.
        """
        if self.ended:
            raise ClientClosedError(f"{self._name} is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._shelter.later(partial(_make, call, future, loop))
        return future

    def later(self, call: Callable[[], None]) -> None:
        """Make the call after all earlier calls, even if the event loop is closed. The call's result is
        dropped.
        """
        self._shelter.later(call)

    def end(self) -> None:
        """Refuse new calls. Calls that are already waiting are still made."""
        self.ended = True
        self._shelter.end()


def _make(call: Callable[[], T], future: asyncio.Future[T], loop: asyncio.AbstractEventLoop) -> None:
    if future.cancelled():
        return
    try:
        result = call()
    except BaseException as error:
        # The task that awaits the future gets the exception.
        _post(loop, partial(_complete, future, future.set_exception, error))
    else:
        _post(loop, partial(_complete, future, future.set_result, result))


def _post(loop: asyncio.AbstractEventLoop, outcome: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):
        # A RuntimeError means that the loop was closed: no task awaits the future.
        loop.call_soon_threadsafe(outcome)


def _complete(future: asyncio.Future[Any], complete: Callable[[Any], None], outcome: Any) -> None:
    if not future.done():
        complete(outcome)
