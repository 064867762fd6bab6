"""`InThread`: what the asyncio forms of consumers have in common: coroutines that run in a thread of the
consumer's own, and plain methods for which that thread leaves its call.

Threads: one event loop; the coroutines of several tasks take turns. A plain method ends a wait of the
consumer's thread first, see `entry`.
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
"""The longest wait of one call in the thread: then other tasks have their turn, and a cancelled call ends."""


class InThread:
    """A consumer `inner` and its thread; `name` is that of the consumer in errors."""

    def __init__(self, inner: Entered, thread: str, name: str) -> None:
        self._inner = inner
        self._line, self._turns = Line(thread), Turns()
        self._home = ClientHome(f"<{name}>")
        self._entry = ConsumerEntry(inner)
        self._astray = False  # a call that was left in the thread may be under way there

    async def _call(self, method: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run a method in the thread, when it is this task's turn."""
        call = functools.partial(method, *arguments, **named)
        while True:
            with contextlib.suppress(GiveWay):
                return await self._turn(lambda: self._done(call))

    def _now(self, method: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call a method in this thread, once the consumer's own has left its call."""
        self._home.visit()
        return self._entry.plain(functools.partial(method, *arguments, **named))

    async def _turn(self, run: Callable[[], Awaitable[T]]) -> T:
        """Run it when it is this task's turn. Raises IllegalStateError in another event loop, where the
        turn would never come.
        """
        self._home.here()
        return await self._turns.take(run)

    async def _done(self, call: Callable[[], T], undo: Callable[[], None] | None = None) -> T:
        """Return what `call` returns in the thread. A task that is cancelled meanwhile waits for it and
        undoes it.
        """
        self._inner._guard.check()
        return await self._run(call, undo)

    async def _run(self, call: Callable[[], T], undo: Callable[[], None] | None = None) -> T:
        made = Undoable(self._entry, call, undo)
        try:
            return await asyncio.shield(self._line.run(made.make))
        except Exception:  # the call's own
            raise
        except BaseException as error:
            # A coroutine that is closed may not wait, and its loop may be closed: the thread undoes the call.
            self._astray = True
            self._line.later(made.take_back)
            if isinstance(error, asyncio.CancelledError):
                await self._all_made()
            raise

    async def _all_made(self) -> None:
        """Wait until the thread is done with all calls, even if the task is cancelled again."""
        made = self._line.run(nothing)
        while not made.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([made])
        self._astray = False


def nothing() -> None:
    """Do nothing: the call is done once all earlier calls are."""


def part_of(left: float) -> float:
    """Return how long the next slice waits, of the `left` ms."""
    return min(max(left, 0), SLICE_MS)
