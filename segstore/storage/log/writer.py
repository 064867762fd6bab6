"""Owns the growing end of a partition: gives offsets, writes, rolls, and puts back what failed.

On disk: the active segment's files; a roll makes the next segment's and a producer snapshot, the abort of a
transaction adds to the `.txnindex`.
Threads: the holder of the partition's append token. Nothing is visible before `publish` is called,
which is after the bytes are written.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from segstore._native import lib
from segstore.config import TopicConfig
from segstore.errors import (
    OffsetsExhaustedError,
    RecordTooLargeError,
    SegstoreError,
    StorageError,
    StoreClosedError,
    copy_of,
    is_refusal,
)
from segstore.files.overlapped_write import Pipeline
from segstore.index.txn_index import AbortedTxn
from segstore.records import Encoded, batch_ptr
from segstore.records.control import Marker, end_marker
from segstore.records.encoded import checked
from segstore.storage.handle_pool import HandlePool
from segstore.storage.meta.small_files import NO_ROOM
from segstore.storage.producers.append_info import Claim
from segstore.storage.producers.producer_state import Saved
from segstore.storage.producers.replay import add_aborted, cut_index, index_size
from segstore.storage.producers.state_manager import Producers
from segstore.storage.segment.active import ActiveSegment, Mark
from segstore.storage.segment.log_view import Together
from segstore.storage.segment.segment import Segment
from segstore.storage.segment.segment_files import _make_files, _new_segment, remove_segment

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_MOST_END = 2**63 - 1


# What became of an append that was begun and not finished: who waits for it is told by a new one.
INTERRUPTED = StorageError(errno.EINTR, "the append was interrupted")


class Pending:
    """Encoded batches that wait to be written, and what became of them. `claim`: whose they are."""

    __slots__ = ("chunks", "claim", "error", "first")

    def __init__(self, chunks: list[Encoded], claim: Claim | None) -> None:
        self.chunks, self.claim = chunks, claim
        self.first = -1
        self.error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self.first >= 0 or self.error is not None


class Restore:
    """The log before an append, and what takes that back. Once `together` is done it stays.

    `segments`: how many there were; `aborts`: bytes of the active `.txnindex`, -1 where it stays as it is;
    `rolled`: the segments that were made since, None before anything was taken back.
    """

    __slots__ = ("aborts", "active", "mark", "pipe", "rolled", "saved", "segments", "together")

    def __init__(
        self, writer: LogWriter, saved: Saved | None, together: Together, pipe: Pipeline | None = None
    ) -> None:
        self.segments, self.active, self.mark = len(writer.segments), writer.active, writer.active.mark()
        self.saved, self.together, self.pipe = saved, together, pipe
        self.aborts = -1
        self.rolled: list[Segment] | None = None


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
        # Of an append that was begun, until all of it is written: noted before anything changes, so that what
        # fails, or a signal handler raises, anywhere and in taking it back too, leaves what to take back.
        self._owed: Restore | None = None
        self.closed = False
        self.removals = 0  # of segments that a failed append had made: their names are gone, not durably so
        self.active = ActiveSegment(segments[-1], config, next_offset)

    @property
    def next_offset(self) -> int:
        return self.active.next_offset

    def write_queued(self, pending: Pending) -> None:
        """Write what was queued; it is told its offset or its error, also where an interrupt comes."""
        if self._owed is not None:
            self.recall()
        before = self.active.next_offset
        pending.error = INTERRUPTED  # unless told otherwise: it is begun, and must not be written twice
        try:
            pending.first = self.write(pending.chunks, pending.claim)
        except BaseException as error:
            if self._owed is None and self.active.next_offset > before:  # it came when all was written
                pending.first, pending.error = before, None
                raise
            if not isinstance(error, Exception):
                raise
            pending.error = error
        else:
            pending.error = None
        finally:
            del pending  # it keeps the error, whose traceback has this frame

    def write(self, chunks: Iterable[Encoded], claim: Claim | None = None) -> int:
        """Append all of it, or nothing: the first offset. StorageError; the log is as before then.

        With a `claim` it is judged first: the errors of `judging`. What repeats what is there is not written,
        and has the first offset of that.
        """
        self.check()
        if claim is None:
            return self._attempt(chunks, None).mark.next_offset
        ready = list(chunks)
        known = self.producers.judge(claim, ready)
        if known is None:
            saved = self.producers.save(claim.template.producer_id)
            return self._attempt(ready, saved).mark.next_offset
        for chunk in ready:
            chunk.release()
        return known

    def write_staged(self, chunks: Iterable[Encoded]) -> None:
        """Append batches that no producer with an id wrote. StorageError, as `write`."""
        self.check()
        self._attempt(chunks, None)

    def write_marker(self, marker: Marker, together: Together) -> int:
        """Append a transaction's end: its offset. StorageError, as `write`. It stays if `together` is done;
        else `take_back`, or the next look, takes it away again.
        """
        self.check()
        saved = self.producers.save(marker.producer_id)
        return self._attempt([end_marker(marker, self.clock())], saved, marker, together).mark.next_offset

    def check(self) -> None:
        """StoreClosedError, StorageError where nothing can be appended."""
        if self.closed:
            raise StoreClosedError(f"{self.directory} is closed, or its topic deleted")
        if self.settled():
            return
        if self.fenced is not None:
            raise StorageError(f"{self.directory} is fenced for writing until it is reopened: {self.reason}")
        raise StorageError(errno.ENOSPC, "no room even to take back an append that failed", self.directory)

    @property
    def reason(self) -> str:
        """Why it is fenced."""
        return str(self.fenced) or type(self.fenced).__name__

    def settled(self) -> bool:
        """Whether the log on disk ends where it should: what a failed append has left is taken back now, if
        that is owed and there is room again.
        """
        if self._owed is not None:
            self.take_back()
        return self.fenced is None and self._owed is None

    def _attempt(
        self,
        chunks: Iterable[Encoded],
        saved: Saved | None,
        marker: Marker | None = None,
        together: Together | None = None,
    ) -> Restore:
        """Without `together` it is there when this returns."""
        pipe = Pipeline(self.pool.files)
        restore = self._owed = Restore(self, saved, together or Together(), pipe)
        aborted: list[AbortedTxn] = []
        try:
            with pipe:
                for chunk in chunks:
                    aborted += self._write_chunk(chunk, pipe, saved is not None, marker)
            if aborted:
                segment = self.active.segment
                if segment is restore.active.segment:  # else it goes with the segment
                    restore.aborts = index_size(self.pool.files, segment)
                add_aborted(self.pool.files, segment, aborted)
        except BaseException as error:
            self.take_back()
            if is_refusal(error) and not isinstance(error, SegstoreError):
                raise StorageError(error.errno, error.strerror, error.filename) from error
            raise
        if together is None:
            self._owed = None
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
            if after < 0:
                self._check_offsets(part)
            checked(after)
            pipe.pwrite(active.handle, chunk.data[at : at + size], position)
            active.appended(part, after)
            if of_producer:
                aborted += self.producers.take(part, marker)
            at += size
        pipe.then(chunk.release)
        return aborted

    def _check_offsets(self, batches: NDArray[np.void]) -> None:
        """OffsetsExhaustedError where there are too few left."""
        need = int((batches["last_offset"] - batches["base_offset"] + 1).sum())
        left = _MOST_END - self.active.next_offset
        if need > left:
            raise OffsetsExhaustedError(
                f"{self.directory} has {left:,} offsets left, and {need:,} are needed: the last one that a "
                f"record may have is {_MOST_END - 1}"
            )

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
        self._owed = Restore(self, None, Together())
        try:
            self.roll()
        except BaseException as error:
            self.take_back()
            if is_refusal(error) and not isinstance(error, SegstoreError):
                raise StorageError(error.errno, error.strerror, error.filename) from error
            raise
        self._owed = None

    # --- taking back ----------------------------------------------------------------------

    def put_back(self, restore: Restore) -> None:
        """Undo all that was written since `restore` was made, as `take_back`."""
        self._owed = restore
        self.take_back()

    def take_back(self) -> None:
        """Undo an append that was begun and not finished, if there is one. Where the disk has no room for
        that it is tried again before the next; where it refuses, the partition is fenced. What else may be
        raised, as by a signal handler, is raised: then the next append, or look, begins with the rest.

        The end goes back in memory first: what failed is never shown, whatever the disk says.
        """
        try:
            self.recall()
            if self._owed is None:
                return
            self._undo(self._owed)
        except OSError as error:
            if not is_refusal(error):
                raise
            if error.errno in NO_ROOM:
                return
            self.fenced = copy_of(error)
        self._owed = None

    def recall(self, but: Together | None = None) -> None:
        """Let the log in memory end where it did before an append that was begun and not finished, `but` for
        one that is just being finished; the disk is left as it is. May be repeated.
        """
        owed = self._owed
        if owed is None or owed.together is but:
            return
        if owed.together.done:  # it is finished
            self._owed = None
            return
        behind = self.segments.index(owed.active.segment) + 1
        if owed.rolled is None:
            owed.rolled = self.segments[behind:]
        del self.segments[behind:]
        self.active = owed.active
        owed.active.recall(owed.mark)
        self.producers.recall(owed.saved)

    def _undo(self, restore: Restore) -> None:
        """May be repeated, whatever an earlier try has done. OSError."""
        mark, segment, rolled = restore.mark, restore.active.segment, restore.rolled or []
        if restore.pipe is not None:
            restore.pipe.end()  # no write comes late
        for gone in reversed(rolled):
            self.producers.forget_snapshot(gone.base_offset)
            remove_segment(gone)
            self.removals += 1
        if restore.aborts >= 0:
            cut_index(self.pool.files, segment, restore.aborts)
        if segment.sealed:
            self.pool.files.truncate(self.active.handle, mark.size)
            self._reopen(restore, segment, mark)
        else:
            self.active.rewind(mark)

    def _reopen(self, restore: Restore, segment: Segment, mark: Mark) -> None:
        """Go on in a segment that a roll had sealed. OSError: it is as before."""
        segment.sealed = False
        segment.attach(None)
        try:
            # In one step: what is done again from here on is done to the new one.
            restore.active = self.active = ActiveSegment(segment, self.config, mark.next_offset)
        except BaseException:
            segment.sealed = True
            raise
