"""`Line`: a thread of one asyncio client, which makes its calls one after another.

Threads: `run` and `end` belong to the event loop, `later` to any thread; the calls are made in the line's
thread. After an interrupt in the loop a call was made, or was not. A `ThreadPoolExecutor` is no replacement:
after an interrupt it might start a second thread.
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
    """The thread of one client. It ends when `end` is called, or the line is dropped. `ended`: new calls are
    refused.
    """

    def __init__(self, name: str) -> None:
        self._name, self._shelter = name, Shelter(name)
        self.ended = False

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Return a future of the call; a call that is cancelled before its turn is not made. Raises
        ClientClosedError.
        """
        if self.ended:
            raise ClientClosedError(f"{self._name} is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._shelter.later(partial(_make, call, future, loop))
        return future

    def later(self, call: Callable[[], None]) -> None:
        """Make the call after all earlier calls, in any state of any loop; its result is dropped."""
        self._shelter.later(call)

    def end(self) -> None:
        """Refuse new calls. The waiting calls are made."""
        self.ended = True
        self._shelter.end()


def _make(call: Callable[[], T], future: asyncio.Future[T], loop: asyncio.AbstractEventLoop) -> None:
    if future.cancelled():
        return
    try:
        result = call()
    except BaseException as error:  # the waiting task raises it
        _post(loop, partial(_complete, future, future.set_exception, error))
    else:
        _post(loop, partial(_complete, future, future.set_result, result))


def _post(loop: asyncio.AbstractEventLoop, outcome: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed: no task awaits the future
        loop.call_soon_threadsafe(outcome)


def _complete(future: asyncio.Future[Any], complete: Callable[[Any], None], outcome: Any) -> None:
    if not future.done():
        complete(outcome)
