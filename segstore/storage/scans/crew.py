"""`ScanThreads`: a few threads that do the tasks of a scan. The results are returned in the order of the
tasks.

On disk: nothing. Threads: a `ScanThreads` belongs to one thread at a time. `leave` makes each of its threads
stop after the current task. `leave` does not wait for the threads, because the garbage collector may call it
in a thread that holds a lock which the task needs.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Generic, TypeVar

from segstore.errors import ForkedError
from segstore.threads import Worker

T = TypeVar("T")
R = TypeVar("R")
MOST_THREADS = 4
AHEAD = 2
"""Results that each thread may make before the caller takes the oldest result."""


class ScanThreads(Generic[R]):
    """Worker threads, to which the caller gives work in turn."""

    def __init__(self, n: int) -> None:
        self._workers = [Worker(f"segstore-scan-{i}") for i in range(n)]
        self._begun, self._pid = 0, os.getpid()
        self._waiting: deque[tuple[Worker, list[R]]] = deque()

    def start(self) -> None:
        """Start the threads. The caller calls this before the first `begin`, and must call `leave` even if
        this raises an error.
        """
        for each in self._workers:
            each.start()

    def begin(self, work: Callable[[], R]) -> None:
        """Give this work to the next thread."""
        worker, box = self._workers[self._begun % len(self._workers)], list[R]()
        self._begun += 1
        self._waiting.append((worker, box))
        worker.do(lambda: box.append(work()))

    @property
    def is_full(self) -> bool:
        """Return whether a result must be taken before the next `begin`."""
        return len(self._waiting) >= AHEAD * len(self._workers)

    def results(self) -> Iterator[R]:
        """Yield the results of all begun work in order, and raise the exceptions of the work."""
        while self._waiting:
            yield self.result()

    def result(self) -> R:
        """Wait for the oldest work whose result was not returned yet, and return its result or raise its
        exception. Raises ForkedError in a forked child of the process that began the scan, because the child
        lacks the threads.
        """
        if os.getpid() != self._pid:
            raise ForkedError(f"this scan is of process {self._pid}: begin another one in {os.getpid()}")
        worker, box = self._waiting.popleft()
        worker.result()
        return box.pop()

    def leave(self) -> None:
        """Stop the threads; work that no thread has begun is never done."""
        for each in self._workers:
            each.leave()


def in_order(tasks: Iterator[T], work: Callable[[T], R], size: Callable[[T], int], small: int) -> Iterator[R]:
    """Yield `work(task)` for each task, in order. Up to four threads do the work, each up to two tasks ahead
    of the caller.

    If all tasks together are smaller than `small`, no thread is started: the calling thread does each task
    when its result is asked for. Leading tasks of size 0 are always done by the calling thread. An exception
    of `tasks` or `work` is raised at its place in the order.
    """
    first: list[T] = []
    total = 0
    while total < small:
        try:
            task = next(tasks)
            total += size(task)
        except StopIteration:
            yield from map(work, first)
            return
        except Exception:
            yield from map(work, first)
            raise
        if total:
            first.append(task)
        else:
            yield work(task)
    yield from _by_threads(chain(first, tasks), work)


def _by_threads(tasks: Iterator[T], work: Callable[[T], R]) -> Iterator[R]:
    crew: ScanThreads[R] = ScanThreads(min(MOST_THREADS, os.cpu_count() or 1))
    try:
        crew.start()
        while True:
            try:
                task = next(tasks)
            except StopIteration:
                break
            except Exception:
                yield from crew.results()
                raise
            crew.begin(partial(work, task))
            if crew.is_full:
                yield crew.result()
        yield from crew.results()
    finally:
        crew.leave()
