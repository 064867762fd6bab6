"""`Watch`: a thread that sleeps for the loop until there is news, as `Store.wait` does, and only while
somebody asks for news. It makes no call otherwise.

Threads: `ask` and `end` are the loop's.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue

from segstore.logger import Logger
from segstore.threads import Background

log = Logger("segstore")

_TRIES, _TRY = 100, 0.01


class Watch:
    """`wake()` lets a sleep return early, from any thread; `then()` is called in the loop after each one."""

    def __init__(
        self,
        wake: Callable[[], object],
        then: Callable[[], object],
        soon: Callable[[Callable[[], object]], None],
    ) -> None:
        self._wake, self._then, self._soon = wake, then, soon
        self._asked: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread: Background | None = None
        self.asleep = False
        """Whether a sleep was asked for whose end was not told yet."""

    def ask(self, sleep: Callable[[], object]) -> None:
        """Have the thread call `sleep`, which returns when there is news, or early. Where a sleep is under
        way already, this does nothing. Raises IllegalStateError where no thread can be started.
        """
        if self.asleep:
            return
        if self._thread is None:
            thread = Background(self._run, "segstore-server-watch")
            thread.start()
            self._thread = thread
        self.asleep = True
        self._asked.put(sleep)

    def _run(self) -> None:
        while (sleep := self._asked.get()) is not None:
            try:
                sleep()
            except Exception as error:  # as StoreClosedError: who asked finds out when it looks
                log.info("a server's wait for news has ended: %s", error)
            del sleep
            self._soon(self._told)

    def _told(self) -> None:
        self.asleep = False
        self._then()

    def end(self) -> None:
        """Let the thread end, and wait for that a moment. After the loop's end `then` is called no more."""
        thread, tries = self._thread, 0
        self._asked.put(None)
        while thread is not None and thread.is_alive() and tries < _TRIES:
            if self.asleep:
                self._wake()  # again and again: the thread may be about to sleep
            thread.join(_TRY)
            tries += 1
