"""The flusher makes a partition's log durable: group commit, recovery point, fencing after a failed sync.

On disk it syncs logs, the index and snapshot files of segments that a roll has sealed, the leader epochs, and
the directory. It writes nothing, except that `_write_again` repeats a write.

Threads: any. One thread syncs for all threads that flush. The other threads wait until that sync is done.
Then a thread whose records are durable returns at once, and one of the remaining threads syncs next. If C
may append, and only the active segment's log needs a sync, C syncs (`_native/commit.c`). This module never
takes the append token.

If several processes share a log, one process syncs for all (`_native/share_sync.c`). While this process syncs
by this module, no other process syncs the log.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count

from segstore import names
from segstore._native import lib, seg_tail_flush
from segstore.errors import StorageError, is_refusal
from segstore.files import Handle
from segstore.mutex import Mutex
from segstore.storage.handle_pool import HandlePool
from segstore.storage.log.log_segments import LogSegments
from segstore.storage.segment import index_files
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.native_tail import NativeTail
from segstore.storage.segment.segment import Segment

_NEVER = (-1, 0)


class Flusher:
    """Syncs one partition's log. All records below `recovery_point` are synced."""

    def __init__(
        self,
        pool: HandlePool,
        segments: LogSegments,
        tail: NativeTail,
        view: Callable[[], LogView],
        advanced: Callable[[int], None],
        sync_epochs: Callable[[], None],
    ) -> None:
        self._sync_epochs = sync_epochs
        self._pool, self._segments, self._view, self._advanced = pool, segments, view, advanced
        self._tail, self._commit, self._failure = tail, tail.c.commit, tail.failure
        # These two are published to other processes when a sync ends. They are the offset below which the log
        # is durable (-1: nothing was synced), and the errno of a failed sync.
        self._synced, self._errno = -1, 0
        self._writes_again = False
        """Whether the next sync first writes the unsynced bytes again. True if another process has died
        during a sync, because the kernel may have reported an error of that sync to that process alone.
        """
        # `_changes` numbers the changes of files, except changes of the active segment's log.
        self._changes = count(1)
        self.lock = Mutex()
        self.lock.on_taken = self._close
        self._names_synced = _NEVER
        # The segments that are not synced yet, each with the offset of the roll that sealed it.
        self._sealed: list[tuple[Segment, int]] = []
        self.failed = False  # whether a sync has failed, so that the disk may lack bytes

    @property
    def recovery_point(self) -> int:
        """Return the offset below which all records are synced."""
        return self._tail.synced

    # --- the fast path --------------------------------------------------------------------

    def bind(self, view: LogView) -> None:
        """Let C do the next syncs, unless more than the active segment's .log file has to be synced now. The
        caller holds the append token.
        """
        tail = self._tail
        tail.c.synced_names = -1
        if tail.syncs:
            self._sync_log_only(self._changes_now(), view)

    def _changes_now(self) -> tuple[int, int]:
        """Return the number of the last change of a file, and the generation of the shared log (-1 if the log
        is not shared). A roll by another process changes the generation.
        """
        c = self._tail.c
        return c.names, c.share.generation if c.share else -1

    def _sync_log_only(self, changes: tuple[int, int], view: LogView) -> None:
        """Let C do the next syncs, unless more than the .log file of the active segment of `view` has to be
        synced. `changes` was returned by `_changes_now` before `view` was read; if a file has changed since
        that call, C does not sync.
        """
        if self._needs_log_only(view):
            self._tail.c.synced_names = changes[0]
            if self._tail.c.share:
                lib.seg_share_sync_less(self._tail.c.share, *changes)
        else:
            self.names_changed()

    def _needs_log_only(self, view: LogView) -> bool:
        """Return whether only the active segment's log needs a sync."""
        return (
            view.slot(self.recovery_point) == len(view.segments) - 1
            and not self._sealed
            and not view.segments[-1].unsynced_aborts
            and self._names_synced == (view.bases[-1], self._segments.removals)
        )

    def _flush_short(self, upto: int) -> bool:
        """Make all records below `upto` durable by one call of C; return False if the slow path must be
        taken.
        """
        code: int = seg_tail_flush(self._tail.address, upto)
        if code == 1:
            self._advanced(upto)
        return code >= 0

    # --- flushing -------------------------------------------------------------------------

    def flush(self, upto: int) -> None:
        """Make all records below `upto` durable. Raises StoreClosedError if the partition was deleted. If the
        sync failed, fences the partition against appends, and raises StorageError.
        """
        if self._flush_short(upto):
            return
        while not self._is_done(upto):
            code = lib.seg_commit_wait(self._commit)
            if code == 0 or code == lib.SEG_SLOW:
                self.without_syncs(partial(self._flush, upto))
                break

    def _flush(self, upto: int) -> None:
        if self._is_done(upto):
            return
        self._check_fenced()
        time.sleep(0)  # this gives threads whose flush has just ended time to append more records
        changes, view = self._changes_now(), self._view()
        self._sync_or_fence(view)
        self._synced = self._tail.synced = view.end_offset
        self._advanced(view.end_offset)
        if self._tail.syncs:
            self._sync_log_only(changes, view)

    def _check_fenced(self) -> None:
        if self._segments.fenced is not None:
            raise StorageError(f"{self._segments.directory} is fenced for writing: {self._segments.reason}")

    def _is_done(self, upto: int) -> bool:
        # A sync may have made the name of a new segment durable before the undo of a failed append removed
        # that segment. Then the directory must be synced again.
        removed = self._names_synced[1] != self._segments.removals
        return self.recovery_point >= upto and not self._sealed and not removed

    def sync_ahead(self, view: LogView) -> None:
        """Make durable the records of `view` that are not visible yet. If the sync failed, fences the
        partition against appends, and raises StorageError.
        """

        def sync() -> None:
            self._check_fenced()
            self._sync_or_fence(view)

        self.without_syncs(sync)

    def set_recovery_point(self, offset: int) -> None:
        """Set the recovery point to `offset`. All records below `offset` are durable, or the log was cut at
        `offset`. The caller holds the append token.
        """
        self._tail.synced = offset

    def _sync_or_fence(self, view: LogView) -> None:
        try:
            # The number is not 0 if a sync of another process failed, or if an interrupt came after a failed
            # sync, and before the log was fenced.
            if number := self._tail.sync_failure:
                raise OSError(number, os.strerror(number), self._segments.active.segment.path)
            if self._tail.c.share:
                lib.seg_share_sync_note(self._tail.c.share, view.end_offset)
            self._sync(view)
            self._synced = self.recovery_point
        except OSError as error:
            if not is_refusal(error):
                raise
            if error.errno == errno.ENOENT:
                self._view()  # raises StoreClosedError if the partition was deleted during the sync
            # After a failed sync a second sync proves nothing, because the kernel may have marked the
            # unwritten pages clean. So the log is fenced.
            self._errno = error.errno or errno.EIO
            self._segments.fence(error)
            self.failed = True
            self._advanced(self.recovery_point)
            raise StorageError(error.errno, f"sync failed: {error.strerror}", error.filename) from error

    def _sync(self, view: LogView) -> None:
        sealed, self._sealed = self._sealed, []
        try:
            self._sync_files(view, sealed)
        except BaseException:
            # If a signal handler has raised the error, files in `sealed` may be unsynced. So the next sync
            # syncs all of them again.
            self._sealed = sealed + self._sealed
            self.names_changed()
            raise

    def _sync_files(self, view: LogView, sealed: list[tuple[Segment, int]]) -> None:
        pool = self._pool
        self._sync_epochs()
        for slot in range(view.slot(self.recovery_point), len(view.segments)):
            segment = view.segments[slot]
            if not segment.durable:
                handle = pool.get(segment.path, write=True)
                if self._writes_again:
                    self._write_again(handle, view.end_of(slot))
                self._sync_file(handle)
            if segment.unsynced_aborts:
                self._sync_aborts(segment)
        for segment, offset in sealed:
            index_files.sync(segment)
            with suppress(FileNotFoundError):  # the snapshot's segment was deleted after the roll
                path = os.path.join(segment.directory, names.segment_file(offset, names.SNAPSHOT))
                with pool.files.open(path, write=True) as handle:
                    pool.files.sync(handle)
        names_now = view.bases[-1], self._segments.removals
        if names_now != self._names_synced:
            # This is set before the sync: if a file is made during the sync, `names_changed` resets the
            # attribute.
            self._names_synced = names_now
            pool.files.sync_dir(self._segments.directory)

    def _write_again(self, handle: Handle, end: int) -> None:
        """Write the bytes from the recovery point up to `end` again. The next sync then writes these bytes to
        disk once more, and reports an error to this process. Raises OSError, also for a batch with a wrong
        CRC.
        """
        code = lib.seg_write_again(handle.fd, self.recovery_point, -1, end)
        if code == -errno.ENOMEM:
            raise MemoryError
        if code < 0:
            raise OSError(-code, os.strerror(-code), handle.path)

    def _sync_aborts(self, segment: Segment) -> None:
        # The flag is reset before the sync, because an abort during the sync needs another sync.
        segment.unsynced_aborts = False
        try:
            with (
                suppress(FileNotFoundError),  # the abort was undone, or the segment was deleted
                self._pool.files.open(segment.file(names.TXN_INDEX), write=True) as handle,
            ):
                self._sync_file(handle)
        except BaseException:
            segment.unsynced_aborts = True
            raise
        self.names_changed()  # the abort may have made the file, so the directory must be synced

    def _sync_file(self, handle: Handle) -> None:
        handle.failed = self._failure
        self._pool.files.sync(handle)

    def without_syncs(self, run: Callable[[], None]) -> None:
        """Call `run` while no other thread or process syncs the log, because `run` may rename the active
        segment's file.
        """
        with self.lock:
            try:
                run()
            finally:
                # This is a single call of C, because an interrupt between two calls would skip the second.
                lib.seg_tail_open_syncs(self._tail.c, self._synced, self._errno or self._failure[0])

    def _close(self) -> None:
        self._synced, self._errno = -1, 0
        try:
            while (code := lib.seg_tail_close_syncs(self._tail.c)) == -errno.EINTR:
                """A signal handler has run, so the call is repeated."""
            self._writes_again = code == 1
        except BaseException:
            lib.seg_tail_open_syncs(self._tail.c, -1, 0)
            raise

    def rolled(self, sealed: Segment, offset: int) -> None:
        """Make the next flush also sync the files that a roll at `offset` wrote: the indexes of the `sealed`
        segment, and the producer snapshot.
        """
        self._sealed.append((sealed, offset))
        self.names_changed()

    def names_changed(self) -> None:
        """Make the next flush also sync the directory, because a file was made or removed."""
        self._names_synced = _NEVER
        self._tail.c.names = changes = next(self._changes)
        if self._tail.c.share:
            lib.seg_share_sync_more(self._tail.c.share, changes)
