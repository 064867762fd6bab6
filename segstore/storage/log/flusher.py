"""The flusher makes a partition's log durable: group commit, recovery point, fencing after a failed sync.

On disk it syncs logs, the files that a roll has sealed beside them, and the directory; it writes nothing.
Threads: any. The thread that holds the lock syncs for all. The others don't wait for the lock, but for the
end of the flush under way: a thread whose records it has made durable goes on at once, whoever flushes next.
The append token is never taken here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from segstore import names
from segstore._native import ffi
from segstore.errors import StorageError, is_refusal
from segstore.files import Handle
from segstore.mutex import Mutex
from segstore.storage.handle_pool import HandlePool
from segstore.storage.log.log_segments import LogSegments
from segstore.storage.segment import index_files
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.segment import Segment
from segstore.threads import Latch

_NEVER = (-1, 0)
_LONGEST_WAIT = 1.0
"""Seconds after which a thread looks again for the flush under way: an interrupt may have ended it untold.
"""


class Flusher:
    """Syncs one partition's log; all below `recovery_point` is synced."""

    def __init__(
        self,
        pool: HandlePool,
        segments: LogSegments,
        view: Callable[[], LogView],
        recovery_point: int,
        advanced: Callable[[int], None],
    ) -> None:
        self._pool, self._segments, self._view, self._advanced = pool, segments, view, advanced
        self.recovery_point = recovery_point
        self.lock = Mutex()
        self._names_synced = _NEVER
        self._sealed: list[tuple[Segment, int]] = []  # sealed by rolls at these offsets, and not synced
        self._failure = ffi.new("int32_t *")  # errno of a sync that failed
        self._under_way: Latch | None = None  # opened at the end of the flush that is under way
        self.failed = False  # whether a sync has failed: what the kernel holds of the log may not be on disk

    def flush(self, upto: int) -> None:
        """Return when all below `upto` is durable. Raises StorageError where the sync failed; the partition
        is fenced then.
        """
        while not self._is_done(upto):
            flush = self._under_way
            if flush is None:
                self._flush(upto)
                break
            flush.wait(_LONGEST_WAIT)

    def _flush(self, upto: int) -> None:
        with self.lock:
            if self._is_done(upto):
                return
            if self._segments.fenced is not None:
                raise StorageError(
                    f"{self._segments.directory} is fenced for writing: {self._segments.reason}"
                )
            flush = self._under_way = Latch()
            try:
                time.sleep(0)  # threads that the last flush was for may append what this one can make durable
                view = self._view()
                self._sync_or_fence(view)
                self.recovery_point = view.end_offset
                self._advanced(view.end_offset)
            finally:
                self._under_way = None
                flush.open()

    def _is_done(self, upto: int) -> bool:
        # A failed append removes its new segment, whose name a sync may have made durable: then the directory
        # must be synced again.
        removed = self._names_synced[1] != self._segments.removals
        return self.recovery_point >= upto and not self._sealed and not removed

    def sync_ahead(self, view: LogView) -> None:
        """Make durable what is in `view` and not visible yet. Raises StorageError where the sync failed; the
        partition is fenced then.
        """
        with self.lock:
            if self._segments.fenced is not None:
                raise StorageError(
                    f"{self._segments.directory} is fenced for writing: {self._segments.reason}"
                )
            self._sync_or_fence(view)

    def _sync_or_fence(self, view: LogView) -> None:
        try:
            if self._failure[0]:  # an earlier sync failed, and an interrupt came then
                number = self._failure[0]
                raise OSError(number, os.strerror(number), self._segments.directory)
            self._sync(view)
        except OSError as error:
            if not is_refusal(error):
                raise
            # The kernel may have dropped the pages and called them clean: a second sync proves nothing.
            self._segments.fence(error)
            self.failed = True
            self._advanced(self.recovery_point)
            raise StorageError(error.errno, f"sync failed: {error.strerror}", error.filename) from error

    def _sync(self, view: LogView) -> None:
        sealed, self._sealed = self._sealed, []
        try:
            self._sync_files(view, sealed)
        except BaseException:
            # Where a signal handler has raised the error, the next sync does again what this one may have
            # missed.
            self._sealed = sealed + self._sealed
            self._names_synced = _NEVER
            raise

    def _sync_files(self, view: LogView, sealed: list[tuple[Segment, int]]) -> None:
        pool = self._pool
        for segment in view.segments[view.slot(self.recovery_point) :]:
            if not segment.durable:
                self._sync_file(pool.get(segment.path, write=True))
            if segment.unsynced_aborts:
                self._sync_aborts(segment)
        for segment, offset in sealed:
            index_files.sync(segment)
            with suppress(FileNotFoundError):  # its segment was deleted meanwhile
                path = os.path.join(segment.directory, names.segment_file(offset, names.SNAPSHOT))
                with pool.files.open(path, write=True) as handle:
                    pool.files.sync(handle)
        names_now = view.bases[-1], self._segments.removals
        if names_now != self._names_synced:
            self._names_synced = names_now  # first: names that are made meanwhile are left to the next sync
            pool.files.sync_dir(self._segments.directory)

    def _sync_aborts(self, segment: Segment) -> None:
        segment.unsynced_aborts = False  # first: aborts that come meanwhile are left to the next sync
        try:
            with (
                suppress(FileNotFoundError),  # the abort was taken back, or the segment deleted meanwhile
                self._pool.files.open(segment.file(names.TXN_INDEX), write=True) as handle,
            ):
                self._sync_file(handle)
        except BaseException:
            segment.unsynced_aborts = True
            raise
        self.names_changed()  # the first abort makes the file

    def _sync_file(self, handle: Handle) -> None:
        handle.failed = self._failure
        self._pool.files.sync(handle)

    def without_syncs(self) -> AbstractContextManager[object]:
        """Return a block in which nothing is synced: the active segment's file may be renamed away in it, and
        come back.
        """
        return self.lock

    def rolled(self, sealed: Segment, offset: int) -> None:
        """Let the next flush also sync the indexes and the producer snapshot that a roll at `offset`
        wrote.
        """
        self._sealed.append((sealed, offset))
        self.names_changed()

    def names_changed(self) -> None:
        """Let the next flush also sync the directory, since a file was made."""
        self._names_synced = _NEVER
