"""`Watcher`: tells the loop that something was published in the store, by whichever thread or process.

Nothing is on disk. Threads: one sleeps in `Store.wait`, and only while the loop has asked for it; the loop's
thread calls the rest. While nothing is published, or nobody asks, no system call is made.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

from segstore.errors import SegstoreError
from segstore.server.node import Loop
from segstore.storage.store.store import Store
from segstore.threads import Background

_LONGEST_MS = 3_600_000.0
_TURN_S = 0.02
"""How often a thread that is to end is woken, until it has seen that."""


class Watcher:
    """Calls `look` in the loop's thread after a publication."""

    def __init__(self, store: Store, loop: Loop, look: Callable[[], object]) -> None:
        self._store, self._loop, self._look = store, loop, look
        self._asked: SimpleQueue[int | None] = SimpleQueue()
        self._thread: Background | None = None
        self._asleep = self._closed = False

    def watch(self, seen: int) -> None:
        """Have `look` called once, as soon as `Store.publications` is not `seen`. What `seen` was in an
        earlier call counts until that has led to a look.
        """
        if self._asleep or self._closed:
            return
        if self._thread is None:
            self._thread = Background(self._run, "segstore-fetch-watcher")
            self._thread.start()
        self._asleep = True
        self._asked.put(seen)

    def _run(self) -> None:
        while (seen := self._asked.get()) is not None and not self._closed:
            try:
                self._store.wait(seen, _LONGEST_MS)
            except SegstoreError:  # the store is closed: its server ends, and answers what waits
                self._loop.soon(self._woken)
                return
            self._loop.soon(self._woken)

    def _woken(self) -> None:
        self._asleep = False
        if not self._closed:
            self._look()

    def close(self, timeout: float = 10.0) -> None:
        """End the thread; wait for that up to `timeout` seconds."""
        self._closed = True
        self._asked.put(None)
        deadline = time.monotonic() + timeout
        while self._thread is not None and self._thread.is_alive() and time.monotonic() < deadline:
            with suppress(SegstoreError):  # closed: then the thread sleeps no more
                self._store._wake()
            self._thread.join(_TURN_S)
