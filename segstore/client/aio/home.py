"""`ClientHome`: binds a client to one event loop, and decides when a task must yield to other tasks.

Threads: any. A thread that runs another event loop than the client's gets IllegalStateError.
"""

from __future__ import annotations

import asyncio

from segstore.errors import IllegalStateError

MOST_CALLS = 64
"""The number of calls that a task makes in a row, without being suspended, before it yields to other tasks.
"""


class ClientHome:
    """The event loop of one client; `client` is the client's name in errors."""

    def __init__(self, client: str) -> None:
        self._client = client
        self._loops: dict[str, asyncio.AbstractEventLoop] = {}
        self._task, self._calls = 0, 0

    def here(self) -> asyncio.AbstractEventLoop:
        """Return the running loop. Raises IllegalStateError if the client's first call was made in another
        loop, even if that loop is closed.
        """
        loop = asyncio.get_running_loop()
        # `setdefault` is atomic: if several threads call `setdefault` at the same time, exactly one of them
        # sets the loop.
        if self._loops.setdefault("loop", loop) is not loop:
            raise IllegalStateError(f"{self._client} belongs to another event loop: make one in this")
        return loop

    def visit(self) -> None:
        """Raise IllegalStateError if this thread runs another loop than the client's. Do nothing if this
        thread runs no loop: a method that is no coroutine may be called before the loop runs, or by a
        listener in the consumer's thread.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        self.here()

    def due(self) -> bool:
        """Count a call that does not suspend its task. Return True if the task must let other tasks run
        before this call, because the last MOST_CALLS calls were all made by this task.
        """
        task = id(asyncio.current_task())
        if task != self._task:
            self._task, self._calls = task, 0
        self._calls += 1
        if self._calls <= MOST_CALLS:
            return False
        self._calls = 1
        return True
