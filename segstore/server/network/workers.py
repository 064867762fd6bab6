"""`Workers`: a few threads for what waits for disks or computes long. They begin with the first job.

Threads: `do` and `end` are the loop's; jobs run in the workers' threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

from segstore.errors import IllegalStateError
from segstore.threads import Background

_PATIENCE = 1.0
_Job = tuple[Callable[[], Any], Callable[[Any], object]]


class Workers:
    """At most `number` threads, of this `kind`. `soon` brings results back to the loop. `under_way` counts
    the jobs whose result was not told yet.
    """

    def __init__(self, kind: str, number: int, soon: Callable[[Callable[[], object]], None]) -> None:
        self._kind, self._number, self._soon = kind, number, soon
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[Background] = []
        self.under_way = 0

    def do(self, run: Callable[[], Any], done: Callable[[Any], object]) -> None:
        """Have a worker call `run`, and then the loop `done` with its result or exception. Where no thread
        can be started, this thread runs it.
        """
        self.under_way += 1
        if len(self._threads) < self._number:
            self._start()
        if self._threads:
            self._jobs.put((run, done))
        else:
            self._do(run, done)

    def _start(self) -> None:
        thread = Background(self._work, f"segstore-server-{self._kind}-{len(self._threads)}")
        try:
            thread.start()
        except IllegalStateError:
            return
        self._threads.append(thread)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(*job)
            del job

    def _do(self, run: Callable[[], Any], done: Callable[[Any], object]) -> None:
        try:
            result = run()
        except BaseException as error:  # told in place of the result
            result = error
        self._soon(partial(self._tell, done, result))

    def _tell(self, done: Callable[[Any], object], result: Any) -> None:
        self.under_way -= 1
        done(result)

    def end(self) -> None:
        """Let the threads end after the jobs that were given, for which this does not wait."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads if not self.under_way else ():
            thread.join(_PATIENCE)
