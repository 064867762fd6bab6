"""Owns the growing end of a partition: gives offsets, writes, rolls, and puts back what failed.

On disk: the active segment's files; a roll makes the next segment's and a producer snapshot, the abort of a
transaction adds to the `.txnindex`.
Threads: the holder of the partition's append token. Nothing is visible before `publish` is called,
which is after the bytes are written.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from segstore import names
from segstore._native import lib
from segstore.config import TopicConfig
from segstore.errors import RecordTooLargeError, SegstoreError, StorageError, StoreClosedError
from segstore.index.txn_index import AbortedTxn
from segstore.records import Encoded, batch_ptr
from segstore.records.control import Marker, end_marker
from segstore.records.encoded import checked
from segstore.storage.aborts import add_aborted, cut_index, index_size
from segstore.storage.active import ActiveSegment, Mark
from segstore.storage.handles import HandlePool
from segstore.storage.indexing import NO_ROOM
from segstore.storage.judging import Claim
from segstore.storage.pending import Pending
from segstore.storage.pipeline import Pipeline
from segstore.storage.producer_state import Saved
from segstore.storage.producers import Producers
from segstore.storage.segment import Segment


class Restore(NamedTuple):
    """The log before an append; `aborts`: bytes of the active `.txnindex`, -1 where it stays as it is."""

    segments: int
    active: ActiveSegment
    mark: Mark
    saved: Saved | None
    aborts: int = -1


class LogWriter:
    """`segments` is shared with the partition, which makes its views from it."""

    def __init__(
        self,
        pool: HandlePool,
        directory: str,
        config: TopicConfig,
        segments: list[Segment],
        next_offset: int,
        epoch: int,
        clock: Callable[[], int],
        rolled: Callable[[int], None],
        producers: Producers,
    ) -> None:
        self.pool, self.directory, self.config, self.producers = pool, directory, config, producers
        self.segments, self.epoch, self.clock, self.rolled = segments, epoch, clock, rolled
        self.fenced: BaseException | None = None
        # What is left of an append that failed, where the disk is too full to take it back.
        self._owed: Callable[[], None] | None = None
        self.closed = False
        self.removals = 0  # of segments that a failed append had made: their names are gone, not durably so
        self.active = ActiveSegment(segments[-1], config, next_offset)

    @property
    def next_offset(self) -> int:
        return self.active.next_offset

    def write_queued(self, pending: Pending) -> None:
        """Write what was queued; it is told its offset or its error, also where an interrupt comes."""
        before = self.active.next_offset
        try:
            pending.first = self.write(pending.chunks, pending.claim)
        except Exception as error:
            pending.error = error
        except BaseException:
            if self.active.next_offset > before:  # it came when all was written
                pending.first = before
            else:
                pending.error = StorageError(errno.EINTR, "the append was interrupted", self.directory)
            raise

    def write(self, chunks: Iterable[Encoded], claim: Claim | None = None) -> int:
        """Append all of it, or nothing: the first offset. StorageError; the log is as before then.

        With a `claim` it is judged first: the errors of `judging`. What repeats what is there is not written,
        and has the first offset of that.
        """
        self.check()
        if claim is None:
            return self._attempt(chunks, None, None).mark.next_offset
        ready = list(chunks)
        known = self.producers.judge(claim, ready)
        if known is None:
            saved = self.producers.save(claim.template.producer_id)
            return self._attempt(ready, saved, None).mark.next_offset
        for chunk in ready:
            chunk.release()
        return known

    def write_staged(self, chunks: Iterable[Encoded]) -> None:
        """Append batches that no producer with an id wrote. StorageError, as `write`."""
        self.check()
        self._attempt(chunks, None, None)

    def write_marker(self, marker: Marker) -> Restore:
        """Append a transaction's end. StorageError, as `write`. Until anything else is written `put_back`
        takes it away again.
        """
        self.check()
        saved = self.producers.save(marker.producer_id)
        return self._attempt([end_marker(marker, self.clock())], saved, marker)

    def check(self) -> None:
        """StoreClosedError, StorageError where nothing can be appended."""
        if self.closed:
            raise StoreClosedError(f"{self.directory} is closed, or its topic deleted")
        if self.settled():
            return
        if self.fenced is not None:
            raise StorageError(f"{self.directory} is fenced for writing until it is reopened: {self.fenced}")
        raise StorageError(errno.ENOSPC, "no room even to take back an append that failed", self.directory)

    def settled(self) -> bool:
        """Whether the log on disk ends where it should: what a failed append has left is taken back now, if
        that is owed and there is room again.
        """
        if self._owed is not None:
            self._take_back()
        return self.fenced is None and self._owed is None

    def _attempt(self, chunks: Iterable[Encoded], saved: Saved | None, marker: Marker | None) -> Restore:
        restore = Restore(len(self.segments), self.active, self.active.mark(), saved)
        aborted: list[AbortedTxn] = []
        try:
            with Pipeline(self.pool.files) as pipe:
                for chunk in chunks:
                    aborted += self._write_chunk(chunk, pipe, saved is not None, marker)
            if aborted:
                segment = self.active.segment
                restore = restore._replace(aborts=index_size(self.pool.files, segment))
                add_aborted(self.pool.files, segment, aborted)
        except BaseException as error:
            self.put_back(restore)
            if isinstance(error, OSError) and not isinstance(error, SegstoreError):
                raise StorageError(error.errno, error.strerror, error.filename) from error
            raise
        return restore

    def _write_chunk(
        self, chunk: Encoded, pipe: Pipeline, of_producer: bool, marker: Marker | None
    ) -> list[AbortedTxn]:
        batches = chunk.batches
        aborted: list[AbortedTxn] = []
        stamp = self.clock() if self.config.message_timestamp_type == "LogAppendTime" else -1
        at = 0
        while at < chunk.size:
            size = chunk.size - at
            fit = self.active.room(batches, size, self.clock())
            if not fit:
                pipe.drain()
                self.roll()
                continue
            part, batches = batches[:fit], batches[fit:]
            if len(batches):
                size = int(part["size"].sum())
            active = self.active
            active.reserve(fit)
            position = active.segment.size
            after = lib.seg_assign(
                chunk.ptr + at, size, batch_ptr(part), fit, active.next_offset, self.epoch, stamp, position
            )
            checked(after)
            pipe.pwrite(active.handle, chunk.data[at : at + size], position)
            active.appended(part, after)
            if of_producer:
                aborted += self.producers.take(part, marker)
            at += size
        pipe.then(chunk.release)
        return aborted

    def roll(self) -> None:
        """Seal the active segment and go on in a new one. OSError."""
        active = self.active
        if not active.segment.size:
            raise RecordTooLargeError(
                f"a batch is larger than segment.bytes={self.config.segment_bytes} allows"
            )
        # Trimmed first: to other processes the next segment's name says that this one is sealed.
        active.trim()
        segment = _new_segment(self.pool, self.directory, active.next_offset, self.config)
        self.segments.append(segment)  # first: `put_back` removes what was made of it, or fences
        _make_files(segment)
        self.active = ActiveSegment(segment, self.config, active.next_offset)
        active.seal()
        self.rolled(segment.base_offset)

    def roll_apart(self) -> None:
        """Roll outside of an append, when what a failed one has left was taken back. StorageError: the log
        is as before.
        """
        self.check()
        restore = Restore(len(self.segments), self.active, self.active.mark(), None)
        try:
            self.roll()
        except BaseException as error:
            self.put_back(restore)
            if isinstance(error, OSError) and not isinstance(error, SegstoreError):
                raise StorageError(error.errno, error.strerror, error.filename) from error
            raise

    def put_back(self, restore: Restore) -> None:
        """Undo the last append. Where the disk has no room for that, it is tried again before the next;
        where it refuses, the partition is fenced.

        The end goes back in memory first: what failed is never shown, whatever the disk says.
        """
        rolled = self.segments[restore.segments :]
        del self.segments[restore.segments :]
        self.active = restore.active
        self.active.recall(restore.mark)
        self._owed = partial(self._undo, restore, rolled)
        self._take_back()

    def _take_back(self) -> None:
        assert self._owed is not None
        try:
            self._owed()
        except BaseException as error:
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                return
            self.fenced = error
        self._owed = None

    def _undo(self, restore: Restore, rolled: list[Segment]) -> None:
        """May be repeated, whatever an earlier try has done. OSError."""
        mark, segment = restore.mark, restore.active.segment
        self.producers.undo(restore.saved, [gone.base_offset for gone in rolled])
        for gone in reversed(rolled):
            remove_segment(gone)
            self.removals += 1
        if restore.aborts >= 0:
            cut_index(self.pool.files, segment, restore.aborts)
        if segment.sealed:
            self.pool.files.truncate(self.active.handle, mark.size)
            self._reopen(segment, mark)
        else:
            self.active.rewind(mark)

    def _reopen(self, segment: Segment, mark: Mark) -> None:
        """Go on in a segment that a roll had sealed. OSError: it is as before."""
        segment.sealed = False
        segment.attach(None)
        try:
            self.active = ActiveSegment(segment, self.config, mark.next_offset)
        except BaseException:
            segment.sealed = True
            raise


def create_segment(pool: HandlePool, directory: str, base_offset: int, config: TopicConfig) -> Segment:
    """Make the files of an empty segment. OSError: what was made of it is gone again."""
    segment = _new_segment(pool, directory, base_offset, config)
    try:
        _make_files(segment)
    except OSError:
        with contextlib.suppress(OSError):
            remove_segment(segment)
        raise
    return segment


def _new_segment(pool: HandlePool, directory: str, base_offset: int, config: TopicConfig) -> Segment:
    interval = config.index_interval_bytes
    return Segment(pool, directory, base_offset, 0, writable=True, sealed=False, interval=interval)


def _make_files(segment: Segment) -> None:
    pool = segment.pool
    # A reader may have opened a deleted topic's log of that name at the last moment.
    pool.forget(segment.path)
    for suffix in (names.LOG, names.INDEX, names.TIME_INDEX):
        pool.files.open_anew(segment.file(suffix)).close()


def remove_segment(segment: Segment) -> None:
    """Remove a segment's files. OSError."""
    for path in bury_segment(segment):
        segment.pool.files.unlink(path)


def bury_segment(segment: Segment) -> list[str]:
    """Take a segment's names away, the log's first: it is `.deleted` then, and a crash leaves it to the next
    open. The new paths. OSError.
    """
    files, pool = segment.pool.files, segment.pool
    pool.forget(segment.path)
    there = []
    for suffix in (names.LOG, names.INDEX, names.TIME_INDEX, names.TXN_INDEX):
        with contextlib.suppress(FileNotFoundError):
            files.rename(segment.file(suffix), segment.file(suffix + names.DELETED))
            there.append(segment.file(suffix + names.DELETED))
    return there
