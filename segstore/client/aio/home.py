"""`Home`: the event loop that a client belongs to, and when a task that uses it gives way. Nothing on disk.

Threads: any may ask; all but those of the loop are refused.
"""

from __future__ import annotations

import asyncio

from segstore.errors import IllegalStateError

MOST_CALLS = 64
"""So many calls that find all at hand a task makes, one after the other, before other tasks have a turn."""


class Home:
    """Of one client; `client` is what an error calls it."""

    def __init__(self, client: str) -> None:
        self._client = client
        self._loops: dict[str, asyncio.AbstractEventLoop] = {}
        self._task, self._calls = 0, 0

    def here(self) -> asyncio.AbstractEventLoop:
        """The running loop. IllegalStateError where it is another than that of the first call, even if that
        is closed.
        """
        loop = asyncio.get_running_loop()
        # In one step of C: of several threads that come first, one does.
        if self._loops.setdefault("loop", loop) is not loop:
            raise IllegalStateError(f"{self._client} belongs to another event loop: make one in this")
        return loop

    def due(self) -> bool:
        """Count a call that does not suspend its task; whether the task is to give way before it makes it.

        Counted are calls of one task in a row: tasks that make one each keep their order.
        """
        task = id(asyncio.current_task())
        if task != self._task:
            self._task, self._calls = task, 0
        self._calls += 1
        if self._calls <= MOST_CALLS:
            return False
        self._calls = 1
        return True
