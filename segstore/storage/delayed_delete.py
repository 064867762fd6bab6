"""`Graveyard`: keeps `.deleted` files for file.delete.delay.ms, then unlinks the files.

A clean close unlinks the files that retention and compaction renamed in this process. Files that an open has
found or renamed stay until their delay is over, even after a close or a crash. The delay begins when the file
is renamed; this time is the file's modification time. Threads: any; one lock, which is not held while files
are unlinked.
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


class _WaitingFiles(NamedTuple):
    """Files to unlink at the time `due` (ms). `found`: whether an open has found or renamed these files."""

    due: int
    delay_ms: int
    found: bool
    paths: Sequence[str]


class Graveyard:
    """Unlinks `.deleted` files after their delay."""

    def __init__(self, files: Files, clock: Callable[[], int], scheduler: Scheduler) -> None:
        self._files, self._clock, self._scheduler = files, clock, scheduler
        self._lock = Mutex()
        self._waiting: list[_WaitingFiles] = []

    def put(self, paths: Sequence[str], delay_ms: int) -> None:
        """Unlink the files after `delay_ms`. If the delay is 0, the files are unlinked now, and this raises
        OSError if that fails.
        """
        if delay_ms <= 0:
            self._unlink(paths)
        elif paths:
            self._wait(_WaitingFiles(self._clock() + delay_ms, delay_ms, False, paths))

    def put_found(self, paths: Sequence[str], delay_ms: int) -> None:
        """Unlink `.deleted` files of a partition that is being opened, `delay_ms` after their rename. If a
        file can't be unlinked, the error is logged, and `clear` tries again. Raises OSError if the
        modification time of a file can't be read.
        """
        now = self._clock()
        by_due: dict[int, list[str]] = {}
        for path in paths:
            since = min(self._files.modified(path) // 1_000_000, now)
            by_due.setdefault(since + delay_ms, []).append(path)
        for due, together in by_due.items():
            if due > now or not self._is_removed(together):
                self._wait(_WaitingFiles(due, delay_ms, True, together))

    def _is_removed(self, paths: Sequence[str]) -> bool:
        """Unlink the files, and return True; if a file can't be unlinked, log a warning, and return False."""
        try:
            self._unlink(paths)
        except OSError as error:
            log.warning("deleted segments could not be removed: %s", error)
            return False
        return True

    def _wait(self, entry: _WaitingFiles) -> None:
        with self._lock:
            self._waiting.append(entry)
        self._scheduler.after(max(0, entry.due - self._clock()) / 1000, self.clear)

    def clear(self, *, closing: bool = False) -> None:
        """Unlink the files that are due. If `closing`, unlink all files except those that an open has found.
        An error does not stop the call: the last OSError is raised at the end. The next call tries to unlink
        the remaining files.
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

    def _take(self, closing: bool) -> list[_WaitingFiles]:
        """Return the files to unlink now, oldest first, and stop waiting for them."""
        with self._lock:
            now = self._clock()
            # If the clock was set back, a file waits at most its whole delay, counted from now.
            waiting = [one._replace(due=min(one.due, now + one.delay_ms)) for one in self._waiting]
            taken = [one for one in waiting if one.due <= now or (closing and not one.found)]
            self._waiting = [one for one in waiting if one.due > now and not (closing and not one.found)]
        return sorted(taken, key=lambda one: one.due)

    def _unlink(self, paths: Sequence[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):  # the file is missing if the topic was deleted
                self._files.unlink(path)
