"""`Watch`: a thread that waits, in place of the loop, for publications (`Store.wait`): changes that readers
of the store see. `ask` begins one wait. Threads: only the loop's thread calls `ask` and `end`.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue

from segstore.logger import Logger
from segstore.threads import Background

log = Logger("segstore")

_TRIES, _TRY = 100, 0.01


class Watch:
    """A waiting thread. `wake()` ends the thread's sleep early. After each sleep the loop's thread calls
    `then()`.
    """

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
        """Whether a sleep was requested, but `then` was not called yet."""

    def ask(self, sleep: Callable[[], object]) -> None:
        """Call `sleep` in the thread; `sleep` returns after a publication, or earlier. If the preceding call
        of `sleep` is not over, do nothing. Raises IllegalStateError if no thread can be started.
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
            # The error may be a StoreClosedError, for example. `then` is called all the same.
            except Exception as error:
                log.info("a server's wait for news has ended: %s", error)
            del sleep
            self._soon(self._woken)

    def _woken(self) -> None:
        self.asleep = False
        self._then()

    def end(self) -> None:
        """Stop the thread, and wait up to a second until it has stopped. The constructor's `then` is not
        called any more, because the loop has stopped.
        """
        thread, tries = self._thread, 0
        self._asked.put(None)
        while thread is not None and thread.is_alive() and tries < _TRIES:
            if self.asleep:
                # `wake` is called again and again, because a call just before the sleep has no effect.
                self._wake()
            thread.join(_TRY)
            tries += 1
