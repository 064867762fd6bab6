"""One background thread per store: periodic and delayed work (flush.ms, checkpoints, sweeps).

On disk: nothing of its own.
Threads: `at` and `soon` may be called from any; tasks run one after the other in the scheduler's thread,
which starts with the first task. A task that fails is logged and does not end the thread.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

log = logging.getLogger("segstore")
Task = Callable[[], object]
LONGEST_WAIT = 86_400.0  # seconds; a condition can't wait for years
NICER = 5
MOST_NICE = 19


def join(thread: threading.Thread | None) -> None:
    """Wait for a thread that was told to end, unless that is this one.

    It is not alive yet, where Ctrl-C came within its start: it will find that it is to end.
    """
    if thread is not None and thread.is_alive() and thread is not threading.current_thread():
        thread.join()


def step_back() -> None:
    """Let this thread, from now on, leave the processor to others: it takes it from none when it wakes, and
    has a third of their share where there are too few.

    Work in the background wakes thousands of times a second, from the disk and for the GIL: each time the
    thread that appends would lose its processor, for milliseconds where others are waiting for one.
    """
    with suppress(OSError):  # a sandbox may refuse it: then both compete
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        nice = os.getpriority(os.PRIO_PROCESS, 0)  # 0: of this thread, on Linux
        os.setpriority(os.PRIO_PROCESS, 0, min(nice + NICER, MOST_NICE))


class Scheduler:
    """Runs tasks at times of the monotonic clock, in seconds. `background`: its thread steps back."""

    def __init__(self, name: str = "segstore-scheduler", *, background: bool = False) -> None:
        self._name, self._background = name, background
        self._wake = threading.Condition()
        self._tasks: list[tuple[float, int, Task]] = []
        self._count = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def soon(self, task: Task) -> None:
        """Run `task` as soon as the thread is free."""
        self.after(0.0, task)

    def after(self, seconds: float, task: Task) -> None:
        """Run `task` once, `seconds` from now; nothing happens when the store closes before."""
        with self._wake:
            if self._closed:
                return
            heapq.heappush(self._tasks, (time.monotonic() + seconds, next(self._count), task))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._wake.notify()

    def every(self, seconds: float, task: Task) -> None:
        """Run `task` again and again, `seconds` after it ended."""

        def again() -> None:
            try:
                task()
            finally:
                self.after(seconds, again)

        self.after(seconds, again)

    def _next(self) -> Task | None:
        with self._wake:
            while not self._closed:
                if not self._tasks:
                    self._wake.wait()
                elif (wait := self._tasks[0][0] - time.monotonic()) > 0:
                    self._wake.wait(min(wait, LONGEST_WAIT))
                else:
                    return heapq.heappop(self._tasks)[2]
        return None

    def _run(self) -> None:
        if self._background:
            step_back()
        while (task := self._next()) is not None:
            try:
                task()
            except Exception:
                log.exception("background task failed")

    def close(self) -> None:
        """Wait for the running task, drop the others."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        join(self._thread)
