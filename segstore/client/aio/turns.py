"""`Turns`: admits one task at a time to a client, in the order of their requests.

Threads: one event loop. After an interrupt at the end of a turn the next turn can still be taken; an
`asyncio.Lock`, whose release is written in Python, would stay locked.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class Turns:
    """The turns of the tasks that use one client."""

    def __init__(self) -> None:
        self._taken = threading.Lock()  # no thread waits for it; `with` releases it in one step of C
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._woken = False  # a woken task has not been resumed yet: a new task lets it go first

    async def take(self, run: Callable[[], Awaitable[T]]) -> T:
        """Await `run` when it is this task's turn, and return its result."""
        if self._woken:
            self._woken = False
            await asyncio.sleep(0)
        if self._taken.locked() or self._waiting:
            await self._wait()
        try:
            with self._taken:
                return await run()
        finally:
            self._wake()

    async def _wait(self) -> None:
        free, queue = asyncio.get_running_loop().create_future(), self._waiting.append
        while True:
            queue(free)
            self._wake()  # again, since an interrupt may have prevented it at the end of the last turn
            try:
                await free
            except BaseException:
                if free.done() and not free.cancelled():
                    self._wake()  # it was this task's turn
                raise
            finally:
                if free in self._waiting:
                    self._waiting.remove(free)
            if not self._taken.locked():
                return
            # Another task came before this one was resumed.
            free, queue = asyncio.get_running_loop().create_future(), self._waiting.appendleft

    def _wake(self) -> None:
        """Resume the first waiting task, if no task has the turn."""
        while self._waiting and not self._taken.locked():
            free = self._waiting[0]
            if not free.done():
                free.set_result(None)
                self._woken = True
                return
            self._waiting.popleft()  # its task is resumed, or is about to be
