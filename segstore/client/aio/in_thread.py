"""`InThread`: the base of the asyncio consumers. The work of coroutines is done in the consumer's own thread;
methods that are no coroutines run in the calling thread.

Threads: one event loop; the coroutines of several tasks run one after another. A method that is no coroutine
first ends a wait of the consumer's thread (see `ConsumerEntry`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from segstore.client.aio.entry import ConsumerEntry, Entered, Undoable
from segstore.client.aio.home import ClientHome
from segstore.client.aio.line import Line
from segstore.client.aio.turns import Turns
from segstore.client.consumer.base import GiveWay

T = TypeVar("T")
P = ParamSpec("P")

SLICE_MS = 50
"""The longest wait of one call in the consumer's thread, in ms. A longer wait is made of several such calls:
between two of them other tasks may use the consumer, and a cancelled wait ends.
"""


class InThread:
    """A consumer `inner` with its own thread; `name` is the consumer's name in errors."""

    def __init__(self, inner: Entered, thread: str, name: str) -> None:
        self._inner = inner
        self._line, self._turns = Line(thread), Turns()
        self._home = ClientHome(f"<{name}>")
        self._entry = ConsumerEntry(inner)
        # `_astray`: whether a cancelled call may still run in the consumer's thread.
        self._astray = False

    async def _call(self, method: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run a method in the consumer's thread, after the earlier calls of all tasks."""
        call = functools.partial(method, *arguments, **named)
        while True:
            with contextlib.suppress(GiveWay):
                return await self._turn(lambda: self._done(call))

    def _now(self, method: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call a method in this thread, as soon as the consumer's thread is within no call."""
        self._home.visit()
        return self._entry.plain(functools.partial(method, *arguments, **named))

    async def _turn(self, run: Callable[[], Awaitable[T]]) -> T:
        """Await `run`, after the earlier calls of all tasks. Raises IllegalStateError in another event
        loop than the client's.
        """
        self._home.here()
        return await self._turns.take(run)

    async def _done(self, call: Callable[[], T], undo: Callable[[], None] | None = None) -> T:
        """Make `call` in the consumer's thread, and return the result of `call`. If the task is cancelled,
        wait until the call has returned, then call `undo`.
        """
        self._inner._guard.check()
        return await self._run(call, undo)

    async def _run(self, call: Callable[[], T], undo: Callable[[], None] | None = None) -> T:
        made = Undoable(self._entry, call, undo)
        try:
            return await asyncio.shield(self._line.run(made.make))
        except Exception:
            # `call` has raised the exception, so `call` has done nothing that `undo` would have to undo.
            raise
        except BaseException as error:
            # The consumer's thread undoes the call, because a coroutine that is being closed can't wait, and
            # its loop may be closed.
            self._astray = True
            self._line.later(made.take_back)
            if isinstance(error, asyncio.CancelledError):
                await self._all_made()
            raise

    async def _all_made(self) -> None:
        """Wait until the thread has made all calls, even if the task is cancelled again."""
        made = self._line.run(nothing)
        while not made.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([made])
        self._astray = False


def nothing() -> None:
    """Do nothing. A caller that waits for this call has waited for all earlier calls in the thread."""


def part_of(left: float) -> float:
    """Return the ms that the next call may wait, if `left` ms of the whole wait remain."""
    return min(max(left, 0), SLICE_MS)
