"""`Turns`: admits one task at a time to a client, in the order of the tasks' calls.

Threads: one event loop. If an interrupt comes when a task's call ends, the next task is still admitted. With
an `asyncio.Lock` the interrupt could come within `release`, which is Python code, and leave the lock locked.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class Turns:
    """The queue of the tasks that use one client. The task that is admitted has the turn."""

    def __init__(self) -> None:
        # `with` releases this lock in C code, so no interrupt prevents the release.
        self._taken = threading.Lock()
        self._waiting: deque[asyncio.Future[None]] = deque()
        # Whether a task was woken, but has not run yet. If so, a new task lets the woken task run first.
        self._woken = False

    async def take(self, run: Callable[[], Awaitable[T]]) -> T:
        """Wait until this task has the turn, await `run`, and return its result."""
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
            # This call is needed because an interrupt may have prevented the `_wake` in another task's
            # `take`.
            self._wake()
            try:
                await free
            except BaseException:
                if free.done() and not free.cancelled():
                    # This task was given the turn, and fails: the next task gets the turn instead.
                    self._wake()
                raise
            finally:
                if free in self._waiting:
                    self._waiting.remove(free)
            if not self._taken.locked():
                return
            # Another task took the turn before this task was resumed.
            free, queue = asyncio.get_running_loop().create_future(), self._waiting.appendleft

    def _wake(self) -> None:
        """Resume the first waiting task, if no task has the turn."""
        while self._waiting and not self._taken.locked():
            free = self._waiting[0]
            if not free.done():
                free.set_result(None)
                self._woken = True
                return
            # The future is done, so its task was resumed, or will be resumed soon.
            self._waiting.popleft()
