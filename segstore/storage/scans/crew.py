"""`ScanThreads`: a few threads that do the work of a scan, whose results come in the order of the work.

On disk: nothing. Threads: a crew belongs to one thread at a time. Its own end when it is left, each behind
the work that it does then, for which nobody waits: a scan may be dropped by the garbage collector, within a
lock that this work waits for.
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
"""Results that each thread makes before the oldest one of them is taken."""


class ScanThreads(Generic[R]):
    """Threads that take turns."""

    def __init__(self, n: int) -> None:
        self._workers = [Worker(f"segstore-scan-{i}") for i in range(n)]
        self._begun, self._pid = 0, os.getpid()
        self._waiting: deque[tuple[Worker, list[R]]] = deque()

    def start(self) -> None:
        """Start the threads; this is called before the first `begin`, and `leave` also where it failed."""
        for each in self._workers:
            each.start()

    def begin(self, work: Callable[[], R]) -> None:
        """Have the next thread do this work."""
        worker, found = self._workers[self._begun % len(self._workers)], list[R]()
        self._begun += 1
        self._waiting.append((worker, found))
        worker.do(lambda: found.append(work()))

    @property
    def is_full(self) -> bool:
        """Return whether a result is to be taken before other work is begun."""
        return len(self._waiting) >= AHEAD * len(self._workers)

    def results(self) -> Iterator[R]:
        """Yield the results of all work that was begun, in this order, and raise its exceptions."""
        while self._waiting:
            yield self.result()

    def result(self) -> R:
        """Return the result of the oldest work, or raise its exception. Raises ForkedError in a child of the
        process that began it: no thread is there to do the work.
        """
        if os.getpid() != self._pid:
            raise ForkedError(f"this scan is of process {self._pid}: begin another one in {os.getpid()}")
        worker, found = self._waiting.popleft()
        worker.result()
        return found.pop()

    def leave(self) -> None:
        """End the threads; work that was not begun is never done."""
        for each in self._workers:
            each.leave()


def in_order(tasks: Iterator[T], work: Callable[[T], R], size: Callable[[T], int], small: int) -> Iterator[R]:
    """Yield `work(task)` for each task, in order. Tasks whose sizes make less than `small` are done when
    their results are asked for, by no other thread, as are the first ones without any size; of larger ones as
    many as four threads do two each ahead. An exception of `tasks` or of `work` comes at its place.
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
