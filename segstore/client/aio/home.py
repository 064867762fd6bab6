"""`ClientHome`: binds a client to one event loop, and decides when a task must yield to other tasks.

Threads: any may call; threads without the client's loop are refused.
"""

from __future__ import annotations

import asyncio

from segstore.errors import IllegalStateError

MOST_CALLS = 64
"""The number of calls without a wait that a task makes in a row before other tasks get a turn."""


class ClientHome:
    """The event loop of one client; `client` is the client's name in errors."""

    def __init__(self, client: str) -> None:
        self._client = client
        self._loops: dict[str, asyncio.AbstractEventLoop] = {}
        self._task, self._calls = 0, 0

    def here(self) -> asyncio.AbstractEventLoop:
        """Return the running loop. Raises IllegalStateError unless it is the loop of the client's first call;
        a client can't change its loop, even after that loop was closed.
        """
        loop = asyncio.get_running_loop()
        # `setdefault` is atomic: if several threads come at once, exactly one sets the loop.
        if self._loops.setdefault("loop", loop) is not loop:
            raise IllegalStateError(f"{self._client} belongs to another event loop: make one in this")
        return loop

    def visit(self) -> None:
        """Raise IllegalStateError in another loop than the client's. Do nothing if no loop is running,
        because plain methods may be called before the loop runs, or by a listener in the consumer's thread.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        self.here()

    def due(self) -> bool:
        """Count a call that does not suspend its task. Return whether the task must yield to other tasks
        before the call: it has made MOST_CALLS calls, and no other task has made a call between them.
        """
        task = id(asyncio.current_task())
        if task != self._task:
            self._task, self._calls = task, 0
        self._calls += 1
        if self._calls <= MOST_CALLS:
            return False
        self._calls = 1
        return True
