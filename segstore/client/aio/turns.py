"""`Turns`: one task at a time, first come, first served. Nothing on disk.

Threads: one event loop. An interrupt that comes as a turn ends leaves the next one free to be taken: an
`asyncio.Lock`, whose release is written in Python, would stay taken.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class Turns:
    """Of the tasks that use one client."""

    def __init__(self) -> None:
        self._taken = threading.Lock()  # never waited for: `with` lets go of it in one step of C
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._woken = False  # and not resumed yet: who comes now lets that one go first

    async def take(self, run: Callable[[], Awaitable[T]]) -> T:
        """What `run` gives, when it is this task's turn."""
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
            self._wake()  # where an interrupt has kept the last one from doing so
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
            # Somebody came before this task was resumed.
            free, queue = asyncio.get_running_loop().create_future(), self._waiting.appendleft

    def _wake(self) -> None:
        """Resume the first that waits, if there is a turn to be had."""
        while self._waiting and not self._taken.locked():
            free = self._waiting[0]
            if not free.done():
                free.set_result(None)
                self._woken = True
                return
            self._waiting.popleft()  # it was resumed, or will be
