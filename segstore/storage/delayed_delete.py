"""Owns `.deleted` files for as long as file.delete.delay.ms lets them be.

A clean close removes what retention and compaction let go in this process. What an open has found or put
aside stays for all of its delay, over closes and crashes: the files' times say since when they are
`.deleted`.
Threads: any; one lock, and no file is touched with it held.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from segstore.files import Files
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.storage.scheduler import Scheduler

log = Logger("segstore")


class _Waiting(NamedTuple):
    """Files that go when the clock's ms are `due`; `found`: by an open."""

    due: int
    delay_ms: int
    found: bool
    paths: Sequence[str]


class Graveyard:
    """Files that were renamed to `.deleted`, by the clock's ms at which they go."""

    def __init__(self, files: Files, clock: Callable[[], int], scheduler: Scheduler) -> None:
        self._files, self._clock, self._scheduler = files, clock, scheduler
        self._lock = Mutex()
        self._waiting: list[_Waiting] = []

    def put(self, paths: Sequence[str], delay_ms: int) -> None:
        """Unlink the files `delay_ms` from now. OSError, where that is now."""
        if delay_ms <= 0:
            self._unlink(paths)
        elif paths:
            self._wait(_Waiting(self._clock() + delay_ms, delay_ms, False, paths))

    def put_found(self, paths: Sequence[str], delay_ms: int) -> None:
        """Of a partition that is opened: unlink the files `delay_ms` after they became `.deleted`. One that
        is due and can't be removed is told, and tried again by `clear`. OSError of a look at the files.
        """
        now = self._clock()
        by_due: dict[int, list[str]] = {}
        for path in paths:
            since = min(self._files.modified(path) // 1_000_000, now)
            by_due.setdefault(since + delay_ms, []).append(path)
        for due, together in by_due.items():
            if due > now or not self._is_removed(together):
                self._wait(_Waiting(due, delay_ms, True, together))

    def _is_removed(self, paths: Sequence[str]) -> bool:
        """A file that can't be removed keeps no partition from being opened."""
        try:
            self._unlink(paths)
        except OSError as error:
            log.warning("deleted segments could not be removed: %s", error)
            return False
        return True

    def _wait(self, entry: _Waiting) -> None:
        with self._lock:
            self._waiting.append(entry)
        self._scheduler.after(max(0, entry.due - self._clock()) / 1000, self.clear)

    def clear(self, *, closing: bool = False) -> None:
        """Unlink those that are due, and at a clean close all but those that an open has found. OSError: the
        others are tried, and those that are left again.
        """
        failed: OSError | None = None
        for entry in self._take(closing):
            try:
                self._unlink(entry.paths)
            except OSError as error:
                failed = error
                with self._lock:
                    self._waiting.append(entry)
        if failed is not None:
            try:
                raise failed
            finally:
                del failed

    def _take(self, closing: bool) -> list[_Waiting]:
        """Oldest first."""
        with self._lock:
            now = self._clock()
            # Where the clock was set back, nothing waits for longer than its delay from now.
            waiting = [one._replace(due=min(one.due, now + one.delay_ms)) for one in self._waiting]
            taken = [one for one in waiting if one.due <= now or (closing and not one.found)]
            self._waiting = [one for one in waiting if one.due > now and not (closing and not one.found)]
        return sorted(taken, key=lambda one: one.due)

    def _unlink(self, paths: Sequence[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):  # its topic was deleted meanwhile
                self._files.unlink(path)
