"""`Scheduler`: runs periodic and delayed work (flush.ms, checkpoints, sweeps) in one background thread.

Nothing is on disk. Threads: any thread may call `after`, `every` and `soon`. Tasks run one after the other in
the scheduler's thread, which starts with the first task. A task's error is logged, and does not end the
thread.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from segstore.logger import Logger
from segstore.storage.reported_failures import ReportedFailures
from segstore.threads import Background, others_are_gone, take

log = Logger("segstore")
Task = Callable[[], object]
LONGEST_WAIT = 86_400.0  # the longest wait in seconds, because a condition can't wait for years
NICER = 5
MOST_NICE = 19


def step_back() -> None:
    """Lower the priority of this thread: when it wakes, it preempts no other thread, and if there are too few
    processors, it gets a third of the time that another thread gets.

    Background threads wake thousands of times a second, after a disk call or to take the GIL. At normal
    priority each wake-up might take the processor from the appending thread, for milliseconds.
    """
    with suppress(OSError):  # if a sandbox refuses this, this thread keeps the normal priority
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        nice = os.getpriority(os.PRIO_PROCESS, 0)  # on Linux 0 means this thread
        os.setpriority(os.PRIO_PROCESS, 0, min(nice + NICER, MOST_NICE))


class Scheduler:
    """Runs tasks at times of the monotonic clock, in seconds. If `background`, the scheduler's thread calls
    `step_back`.

    Ctrl-C may come anywhere within a call: see `segstore.threads`.
    """

    def __init__(self, name: str = "segstore-scheduler", *, background: bool = False) -> None:
        self._name, self._background = name, background
        self._queue: SimpleQueue[tuple[float, int, Task] | None] = SimpleQueue()
        self._tasks: list[tuple[float, int, Task]] = []
        self._count = itertools.count()
        self._started = self._closed = False
        self._running = threading.Lock()  # the scheduler's thread holds this lock while it runs
        self._ident = -1

    def soon(self, task: Task) -> None:
        """Run `task` as soon as the scheduler's thread is free."""
        self.after(0.0, task)

    def after(self, seconds: float, task: Task) -> None:
        """Run `task` once, after `seconds`. If the store is closed or the interpreter exits before that, the
        task is dropped.
        """
        if self._closed or others_are_gone():
            return
        self._queue.put((time.monotonic() + seconds, next(self._count), task))
        if not self._started:
            Background(self._run, self._name).start()
            # This line comes last, so that after an interrupt the next call starts a thread.
            self._started = True

    def every(self, seconds: float, task: Task) -> None:
        """Run `task` after `seconds`, and again `seconds` after each run has ended. A failure is logged
        unless the run before failed with the same cause.
        """
        reported = ReportedFailures()

        def again() -> None:
            try:
                task()
                reported.over(task)
            except Exception as error:
                if reported.is_new(task, error):
                    raise
            finally:
                self.after(seconds, again)

        self.after(seconds, again)

    def _run(self) -> None:
        if self._running.acquire(blocking=False):  # if the lock is held, another thread runs the tasks
            self._ident = threading.get_ident()
            try:
                self._work()
            finally:
                self._running.release()

    def _work(self) -> None:
        if self._background:
            step_back()
        while (task := self._next()) is not None:
            try:
                task()
            except Exception:
                log.exception("background task failed")

    def _next(self) -> Task | None:
        wait: float | None = 0.0
        while not self._closed:
            try:
                entry = self._queue.get() if wait is None else take(self._queue, wait)
            except Empty:
                if self._tasks and self._tasks[0][0] <= time.monotonic():
                    return heapq.heappop(self._tasks)[2]
            else:
                if entry is not None:
                    heapq.heappush(self._tasks, entry)
            wait = self._pause()
        return None

    def _pause(self) -> float | None:
        """Return the seconds until the next task is due, or None if there is no task."""
        if not self._tasks:
            return None
        return min(max(self._tasks[0][0] - time.monotonic(), 0.0), LONGEST_WAIT)

    def close(self) -> None:
        """Wait for the running task, and drop all waiting tasks."""
        self._closed = True
        self._queue.put(None)
        if self._ident != threading.get_ident() and not others_are_gone():
            with self._running:
                """The running task has ended, and no later task is run, because the scheduler is closed."""
