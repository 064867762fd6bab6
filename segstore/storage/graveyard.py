"""Owns `.deleted` files for as long as file.delete.delay.ms lets them be.

A crash leaves them to the next open, which removes them; a clean close removes them itself.
Threads: any; one lock, and no file is touched with it held.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Callable, Sequence

from segstore.files import Files
from segstore.mutex import Mutex
from segstore.storage.scheduler import Scheduler


class Graveyard:
    """Files that were renamed to `.deleted`, by the clock's ms at which they go."""

    def __init__(self, files: Files, clock: Callable[[], int], scheduler: Scheduler) -> None:
        self._files, self._clock, self._scheduler = files, clock, scheduler
        self._lock = Mutex()
        self._waiting: list[tuple[int, int, int, Sequence[str]]] = []
        self._count = itertools.count()

    def put(self, paths: Sequence[str], delay_ms: int) -> None:
        """Unlink the files `delay_ms` from now. OSError, where that is now."""
        if delay_ms <= 0:
            self._unlink(paths)
        elif paths:
            with self._lock:
                heapq.heappush(self._waiting, (self._clock() + delay_ms, next(self._count), delay_ms, paths))
            self._scheduler.after(delay_ms / 1000, self.clear)

    def clear(self, *, all_of_them: bool = False) -> None:
        """Unlink those that are due. OSError: the others are tried, and those that are left again."""
        failed: OSError | None = None
        for entry in self._take(all_of_them):
            try:
                self._unlink(entry[-1])
            except OSError as error:
                failed = error
                with self._lock:
                    heapq.heappush(self._waiting, entry)
        if failed is not None:
            try:
                raise failed
            finally:
                del failed

    def _take(self, all_of_them: bool) -> list[tuple[int, int, int, Sequence[str]]]:
        taken = []
        with self._lock:
            now = self._clock()
            # Where the clock was set back, nothing waits for longer than its delay from now.
            self._waiting = [(min(due, now + ms), at, ms, paths) for due, at, ms, paths in self._waiting]
            heapq.heapify(self._waiting)
            while self._waiting and (all_of_them or self._waiting[0][0] <= now):
                taken.append(heapq.heappop(self._waiting))
        return taken

    def _unlink(self, paths: Sequence[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):  # its topic was deleted meanwhile
                self._files.unlink(path)
