"""`Workers`: a few threads for jobs that wait for disks or compute long. The first jobs start the threads.

Threads: only the loop's thread calls `do` and `end`; jobs run in the threads of the pool.
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
    """A pool of at most `number` threads, whose names have `kind` in them. `soon` passes the results to the
    loop. `under_way` counts the jobs whose `done` was not called yet.
    """

    def __init__(self, kind: str, number: int, soon: Callable[[Callable[[], object]], None]) -> None:
        self._kind, self._number, self._soon = kind, number, soon
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[Background] = []
        self.under_way = 0

    def do(self, run: Callable[[], Any], done: Callable[[Any], object]) -> None:
        """Call `run` in a thread of the pool, then `done` in the loop's thread, with what `run` returned or
        raised. If the pool has no thread and none can be started, call `run` in the calling thread.
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
        except BaseException as error:  # `done` gets the exception in place of a result
            result = error
        self._soon(partial(self._finish, done, result))

    def _finish(self, done: Callable[[Any], object], result: Any) -> None:
        self.under_way -= 1
        done(result)

    def end(self) -> None:
        """Make the threads stop after the queued jobs. If no job is queued or running, wait for each thread,
        at most `_PATIENCE` seconds.
        """
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads if not self.under_way else ():
            thread.join(_PATIENCE)
