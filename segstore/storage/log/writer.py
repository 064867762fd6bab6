"""The writer of a partition's log: it gives offsets, writes, rolls, and takes back failed appends.

On disk are the active segment's files; a roll makes the next segment's files and a producer snapshot, and the
abort of a transaction adds to the `.txnindex`. Threads: the holder of the partition's append token. Nothing
is visible before `Visible.show` is called, after the bytes are written.
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


# The error of an append that was begun and not finished; the thread that waits for it raises a new error
# like it.
INTERRUPTED = StorageError(errno.EINTR, "the append was interrupted")


class Pending:
    """Encoded batches that wait to be written, and their first offset or error. `claim` says which producer
    wrote them.
    """

    __slots__ = ("chunks", "claim", "error", "first")

    def __init__(self, chunks: list[Encoded], claim: Claim | None) -> None:
        self.chunks, self.claim = chunks, claim
        self.first = -1
        self.error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self.first >= 0 or self.error is not None


class Restore:
    """The state of the log before an append, from which the append can be taken back. Once `together` is done
    the append stays.

    `segments` is how many segments there were; `aborts` the size in bytes of the active `.txnindex`, -1 where
    the append leaves it as it is; `rolled` the segments made since, None before anything was taken back.
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
    """Writes one partition's log. The list `segments` is shared with the partition, which makes its views
    from it.
    """

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
        # The state before an append, kept until all of the append is written. It is noted before anything
        # changes: whatever fails or a signal handler raises, also while an append is taken back, this says
        # what to undo.
        self._owed: Restore | None = None
        self.closed = False
        self.removals = 0  # how many segments of failed appends were removed: the directory may not be synced
        self.active = ActiveSegment(segments[-1], config, next_offset)

    @property
    def next_offset(self) -> int:
        return self.active.next_offset

    def write_queued(self, pending: Pending) -> None:
        """Write a queued append, and note its offset or its error in it, also where an interrupt comes."""
        if self._owed is not None:
            self.recall()
        before = self.active.next_offset
        pending.error = INTERRUPTED  # until the outcome is known: what was begun must not be written twice
        try:
            pending.first = self.write(pending.chunks, pending.claim)
        except BaseException as error:
            if self._owed is None and self.active.next_offset > before:  # raised when all was written
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
        """Append all of the chunks, or nothing; returns the first offset. Raises StorageError; the log is as
        before then.

        With a `claim`, the append is judged first, which raises the errors of `append_info.judge`. A repeated
        append is not written, and has the first offset of the batches that it repeats.
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
        """Append batches that no producer with an id wrote. Raises StorageError, as `write`."""
        self.check()
        self._attempt(chunks, None)

    def write_marker(self, marker: Marker, together: Together) -> int:
        """Append a transaction marker; returns its offset. Raises StorageError, as `write`. The marker stays
        if `together` is done; else `take_back`, or the next view that is made, removes it.
        """
        self.check()
        saved = self.producers.save(marker.producer_id)
        return self._attempt([end_marker(marker, self.clock())], saved, marker, together).mark.next_offset

    def check(self) -> None:
        """Raises StoreClosedError, or StorageError where nothing can be appended."""
        if self.closed:
            raise StoreClosedError(f"{self.directory} is closed, or its topic deleted")
        if self.settled():
            return
        if self.fenced is not None:
            raise StorageError(f"{self.directory} is fenced for writing until it is reopened: {self.reason}")
        raise StorageError(errno.ENOSPC, "no room even to take back an append that failed", self.directory)

    @property
    def reason(self) -> str:
        """Why the partition is fenced."""
        return str(self.fenced) or type(self.fenced).__name__

    def settled(self) -> bool:
        """Whether the log on disk ends where it should. What a failed append has left is taken back now, if
        that is still to be done and there is room again.
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
        """Write the chunks, or take them back. Without `together` the append stays when this returns."""
        pipe = Pipeline(self.pool.files)
        restore = self._owed = Restore(self, saved, together or Together(), pipe)
        aborted: list[AbortedTxn] = []
        try:
            with pipe:
                for chunk in chunks:
                    aborted += self._write_chunk(chunk, pipe, saved is not None, marker)
            if aborted:
                segment = self.active.segment
                if segment is restore.active.segment:  # else the `.txnindex` is removed with the segment
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
        """Raises OffsetsExhaustedError where too few offsets are left."""
        need = int((batches["last_offset"] - batches["base_offset"] + 1).sum())
        left = _MOST_END - self.active.next_offset
        if need > left:
            raise OffsetsExhaustedError(
                f"{self.directory} has {left:,} offsets left, and {need:,} are needed: the last one that a "
                f"record may have is {_MOST_END - 1}"
            )

    def roll(self) -> None:
        """Seal the active segment and go on in a new one. Raises OSError."""
        active = self.active
        if not active.segment.size:
            raise RecordTooLargeError(
                f"a batch is larger than segment.bytes={self.config.segment_bytes} allows"
            )
        # Trimmed first: to other processes the next segment's name says that this one is sealed.
        active.trim()
        segment = _new_segment(self.pool, self.directory, active.next_offset, self.config)
        self.segments.append(segment)  # first: `take_back` removes the files that were made, or fences
        _make_files(segment)
        self.active = ActiveSegment(segment, self.config, active.next_offset)
        active.seal()
        self.rolled(segment.base_offset)

    def roll_apart(self) -> None:
        """Roll outside of an append, after what a failed append left was taken back. Raises StorageError; the
        log is as before then.
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
        """Undo all that was written since `restore` was made, as `take_back` does."""
        self._owed = restore
        self.take_back()

    def take_back(self) -> None:
        """Undo an append that was begun and not finished, if there is one. Where the disk has no room for
        that, the undo is tried again before the next append; where the disk refuses, the partition is fenced.
        Anything else, such as an error of a signal handler, is raised: then the next append, or view, begins
        with the rest.

        The end goes back in memory first: what failed is never visible, whatever the disk says.
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
        """Let the log in memory end where it did before an append that was begun and not finished, unless
        that append belongs to `but`, which is just being finished; the disk is left as it is. May be
        repeated.
        """
        owed = self._owed
        if owed is None or owed.together is but:
            return
        if owed.together.done:  # the append is finished
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
        """Undo an append on disk. May be repeated, whatever an earlier try has done. Raises OSError."""
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
        """Go on in a segment that a roll had sealed. Raises OSError; the segment is as before then."""
        segment.sealed = False
        segment.attach(None)
        try:
            # Both names change in one step: whatever is repeated from here on is done to the new object.
            restore.active = self.active = ActiveSegment(segment, self.config, mark.next_offset)
        except BaseException:
            segment.sealed = True
            raise
