"""Threads that wait for a partition's append token: a test lets them queue up before one of them gets it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from waiting import until

from segstore.mutex import Mutex


@contextmanager
def counted(token: Mutex) -> Iterator[list[int]]:
    """Yield the list of the threads that have waited for the token, each once for each time."""
    waiters: list[int] = []
    wait = token._wait

    def noted() -> None:
        waiters.append(threading.get_ident())
        wait()

    token._wait = noted  # type: ignore[method-assign]
    try:
        yield waiters
    finally:
        del token._wait  # type: ignore[method-assign]


def held_until_all_wait(token: Mutex, appends: Sequence[Callable[[], object]]) -> None:
    """Make these appends in threads that all wait for the append token before one of them gets it; return
    when they have ended.
    """
    threads = [threading.Thread(target=append) for append in appends]
    with counted(token) as waiters:
        with token:
            for n, thread in enumerate(threads, 1):
                thread.start()
                until(lambda n=n: len(waiters) == n)
        for thread in threads:
            thread.join()
