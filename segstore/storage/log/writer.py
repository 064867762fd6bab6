"""The writer of a partition's log: it assigns offsets, writes, rolls, and undoes failed appends.

On disk are the active segment's files; a roll makes the next segment's files and a producer snapshot, and the
abort of a transaction adds to the `.txnindex`. Threads: the holder of the partition's append token. Records
are not visible before `Visible.show` is called, after the bytes are written.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from segstore.config import TopicConfig
from segstore.errors import (
    DemotedError,
    NotLeaderOrFollowerError,
    RecordTooLargeError,
    SegstoreError,
    StorageError,
    is_refusal,
)
from segstore.files.reserve import NO_ROOM
from segstore.index.txn_index import AbortedTxn
from segstore.records import Encoded
from segstore.records.control import Marker, end_marker
from segstore.storage.handle_pool import HandlePool
from segstore.storage.log.log_segments import LogSegments
from segstore.storage.producers.append_info import ExpectedEnd, ProducerAppendInfo
from segstore.storage.producers.producer_state import Saved
from segstore.storage.producers.replay import add_aborted, cut_index, index_size
from segstore.storage.producers.state_manager import Producers
from segstore.storage.segment.active import ActiveSegment, ChunkPart, Mark
from segstore.storage.segment.log_view import AtomicPublish
from segstore.storage.segment.segment import Segment
from segstore.storage.segment.segment_files import make_files, new_segment, remove_segment

if TYPE_CHECKING:
    from segstore.storage.log.lease_term import LeaseTerm
    from segstore.storage.log.recent_appends import RecentAppends
    from segstore.storage.segment.native_tail import NativeTail

Take = Callable[[Any], list[AbortedTxn]]
"""Updates the producers' state with written batches (memory with `seg_batch` structs); returns the aborted
transactions.
"""
Aborted = list[tuple[Segment, AbortedTxn]]
"""Aborted transactions, each with the segment that has its marker."""


def _ignored(error: OSError, need: int = 0) -> None:
    """Ignore the error."""


def _not_taken_back(directory: str) -> StorageError:
    return StorageError(errno.ENOSPC, "no room even to take back an append that failed", directory)


class _AskedAppend(NamedTuple):
    """The headers of another process's append, in an object with the attribute that `ActiveSegment.room`
    reads.
    """

    headers: Any


class AppendUndo:
    """The state of the log before an append, with which the append can be undone. After the publication
    `together` is done, the append is final.

    `saved` is the state of the producers whose batches are appended. `aborts` is the size in bytes of the
    active `.txnindex`, -1 if the append does not change it. `rolled` are the segments that were made during
    the append, None before the undo begins. `need` is the number of bytes of the append; of a long append,
    the bytes up to the current chunk.
    """

    __slots__ = ("aborts", "active", "mark", "need", "rolled", "saved", "together")

    def __init__(
        self, segments: LogSegments, saved: Sequence[Saved] = (), together: AtomicPublish | None = None
    ) -> None:
        self.active = segments.active
        self.mark = self.active.mark()
        self.saved, self.together = saved, together
        self.aborts = -1
        self.need = 0
        self.rolled: list[Segment] | None = None


class LogWriter:
    """Writes one partition's log. `rolled` is called with the base offset of each new segment."""

    def __init__(
        self,
        pool: HandlePool,
        config: TopicConfig,
        segments: LogSegments,
        epoch: int,
        clock: Callable[[], int],
        rolled: Callable[[int], None],
        producers: Producers,
    ) -> None:
        self.pool, self.config, self.producers = pool, config, producers
        self.segments, self.epoch, self.clock, self.rolled = segments, epoch, clock, rolled
        self.pending_undo: AppendUndo | None = None
        """The state before an append, which is kept until the whole append is written. This is set before the
        append changes the log, so that the append can be undone after any failure, also after the error of a
        signal handler. If the undo itself fails, the undo can be repeated.
        """
        self.follows = False
        """Whether only a leader's batches are appended, because this replica is not the leader."""
        self.demoted = ""
        """The reason why appends of applications are refused after a demotion of the store, else ""."""
        self.term: LeaseTerm | None = None
        """The term of the lease by which the store leads, None without a lease."""
        self.save_epochs: Callable[[], None] | None = None
        """Writes the file of leader epochs, which must have `epoch` before a batch is written under that
        epoch; None after the file has `epoch`.
        """
        self.no_room: Callable[[OSError, int], object] = _ignored
        """Called with the error and the append's number of bytes if an append finds the disk full. The append
        token is held during the call.
        """
        self.recent: RecentAppends | None = None
        """Keeps the leader's last appends for its followers; None if they are not kept."""

    # --- appends --------------------------------------------------------------------------

    def write(self, chunks: Iterable[Encoded], claim: ProducerAppendInfo | ExpectedEnd | None = None) -> int:
        """Append all of the chunks, or none; return the first offset. Raises StorageError; then the log has
        not changed.

        If `claim` is a ProducerAppendInfo, `append_info.judge` is called first, and raises an error if the
        append is not allowed. If the append repeats earlier batches, the append is not written, and the first
        offset of the earlier batches is returned. If `claim` is an ExpectedEnd, raises OffsetMismatchError
        unless the log ends at the offset of `claim`.
        """
        segments = self.segments
        leads = not self.follows and self.term is None
        if not leads or self.pending_undo is not None or segments.fenced is not None or segments.closed:
            self.check_leads()
        if claim is None:
            return self._attempt(chunks).mark.next_offset
        if isinstance(claim, ExpectedEnd):
            claim.check(segments.active.end.next_offset)
            return self._attempt(chunks).mark.next_offset
        ready = list(chunks)
        known = self.producers.judge(claim, ready)
        if known is None:
            saved = self.producers.save([claim.template.producer_id])
            return self._attempt(ready, saved, self.producers.take).mark.next_offset
        for chunk in ready:
            chunk.release()
        return known

    def write_staged(self, chunks: Iterable[Encoded]) -> None:
        """Append batches without a producer id. Raises StorageError, like `write`."""
        self.check_leads()
        self._attempt(chunks)

    def write_as_follower(self, chunk: Encoded) -> None:
        """Append batches with the offsets and epochs that the leader gave them. The batches may be from
        several producers, and may include markers. The caller has compared the offsets with the log's end.
        Raises StorageError, like `write`, and CorruptRecordError if a marker can't be read.
        """
        self.check()
        ids = chunk.batches["producer_id"]
        if (ids < 0).all():
            self._attempt([chunk], as_is=True)
            return
        saved = self.producers.save([each for each in set(ids.tolist()) if each >= 0])
        self._attempt([chunk], saved, partial(self.producers.take_as_follower, data=chunk.buffer), as_is=True)

    def write_marker(self, marker: Marker, together: AtomicPublish) -> int:
        """Append a transaction marker; return its offset. Raises StorageError, like `write`. The marker is
        final after the publication `together` is done; before that, `take_back` or `recall` removes the
        marker.
        """
        self.check_leads()
        saved = self.producers.save([marker.producer_id])
        take = partial(self.producers.take, marker=marker)
        return self._attempt([end_marker(marker, self.clock())], saved, take, together).mark.next_offset

    def check(self) -> None:
        """Raise StoreClosedError if the log is closed, and StorageError if it is fenced, or if the disk has
        no room for the undo of a failed append.
        """
        segments = self.segments
        if not segments.closed and self.is_whole():
            return
        segments.check()
        self.no_room(_not_taken_back(segments.directory), 0)
        raise _not_taken_back(segments.directory)

    def check_leads(self) -> None:
        """Raise the errors of `check`. Raise NotLeaderOrFollowerError if this replica is not the leader, and
        DemotedError if the store was demoted, or if the term of the store's lease is over.
        """
        self.check()
        if self.demoted:
            raise DemotedError(self.demoted)
        if self.term is not None:
            self.term.check()
        if self.follows:
            raise NotLeaderOrFollowerError(
                f"{self.segments.directory}: this replica does not lead, and appends only what its leader "
                "wrote"
            )

    def is_whole(self) -> bool:
        """Return whether the log on disk ends at its last append. If the undo of a failed append is pending,
        the undo is tried first.
        """
        if self.pending_undo is not None:
            self.take_back()
        return self.segments.fenced is None and self.pending_undo is None

    def _attempt(
        self,
        chunks: Iterable[Encoded],
        saved: Sequence[Saved] = (),
        take: Take | None = None,
        together: AtomicPublish | None = None,
        as_is: bool = False,
    ) -> AppendUndo:
        """Write all of the chunks, or none; return the undo of the append. If `together` is None, the append
        is final when this returns. `take` is called with the written batches, and returns the transactions
        that the batches abort. If `as_is`, the batches keep their offsets and epochs.
        """
        self.begin_epoch()
        undo = self.pending_undo = AppendUndo(self.segments, saved, together)
        try:
            if isinstance(chunks, list):
                undo.need = sum(chunk.size for chunk in chunks)
                aborted = self._write_ready(chunks, take, as_is)
            else:
                aborted = self._write_long(chunks, take, undo)
            if aborted:
                self._add_aborted(undo, aborted)
        except BaseException as error:
            self.take_back()
            self.judge(error, undo.need)
            raise
        if together is None:
            self.pending_undo = None
            if self.recent is not None and isinstance(chunks, list) and not as_is:
                self.recent.keep(chunks)
                return undo
        for chunk in chunks:  # the chunks of a long append were already released by `_write_long`
            if chunk.pooled:
                chunk.release()
        return undo

    def begin_epoch(self) -> None:
        """Write the file of leader epochs, unless it has the current epoch. Raises StorageError."""
        if self.save_epochs is not None:
            try:
                self.save_epochs()
            except OSError as error:
                self.judge(error)
                raise
            self.save_epochs = None

    def _write_ready(self, chunks: list[Encoded], take: Take | None, as_is: bool = False) -> Aborted:
        """Write encoded chunks, by one system call for each segment that they go into. Return the
        transactions that the chunks abort.
        """
        # If `as_is`, the batches keep the leader's timestamps.
        stamps = self.config.message_timestamp_type == "LogAppendTime" and not as_is
        parts = [ChunkPart.of(chunk, self.clock() if stamps else -1) for chunk in chunks if chunk.size]
        aborted: Aborted = []
        judged = 0
        while parts:
            active = self.segments.active
            done = active.append(parts, judged, self.epoch, as_is)
            if take is not None:
                aborted += [(active.segment, txn) for part in parts[:done] for txn in take(part.memory)]
            del parts[:done]
            judged = self._make_room(parts, as_is) if parts else 0
        return aborted

    def _make_room(self, parts: list[ChunkPart], as_is: bool) -> int:
        """Make room for the first part. If only some of its batches fit into the active segment, split the
        part, so that these batches are the first part. Return 1 if the first part fits now, 0 if the log was
        rolled. Raises OSError.
        """
        first, more = parts[0], sum(part.n for part in parts[1:])
        fit = self.segments.active.room(first, self.clock, as_is, more)
        if not fit:
            self.roll(first.headers[0].base_offset if as_is else None)
        elif fit < first.n:
            parts[:1] = first.split(fit)
        return int(fit > 0)

    def _write_long(self, chunks: Iterable[Encoded], take: Take | None, undo: AppendUndo) -> Aborted:
        """Write the chunks of a long append, each before the next chunk is encoded into the same memory.
        Return the transactions that the chunks abort.
        """
        aborted: Aborted = []
        for chunk in chunks:
            undo.need += chunk.size
            aborted += self._write_ready([chunk], take)
            chunk.release()
        return aborted

    def _add_aborted(self, undo: AppendUndo, aborted: Aborted) -> None:
        """Add aborted transactions to the `.txnindex` of the segments that have their markers."""
        for segment, found in groupby(aborted, itemgetter(0)):
            if segment is undo.active.segment:  # the `.txnindex` of a new segment is removed with the segment
                undo.aborts = index_size(self.pool.files, segment)
            add_aborted(self.pool.files, segment, [txn for _, txn in found])

    def roll(self, base_offset: int | None = None) -> None:
        """Seal the active segment and continue in a new segment, which begins at `base_offset`, by default at
        the log's end. Raises OSError.
        """
        segments, active = self.segments, self.segments.active
        begin = active.end.next_offset if base_offset is None else base_offset
        if not active.end.position and begin == active.segment.base_offset:
            raise RecordTooLargeError(
                f"a batch is larger than segment.bytes={self.config.segment_bytes} allows"
            )
        # The active segment is trimmed first, because other processes consider it sealed as soon as the next
        # segment has a name.
        active.trim()
        segment = new_segment(self.pool, segments.directory, begin, self.config)
        # The segment is added before its files are made: `take_back` removes the files of listed segments.
        segments.append(segment)
        make_files(segment)
        segments.activate(ActiveSegment(segment, self.config, begin))
        active.seal()
        # this writes a producer snapshot, and begins a flush in the background
        self.rolled(segment.base_offset)

    def leave_sealed(self, tail: NativeTail) -> None:
        """Continue in a new segment, because the active segment was sealed although another process may still
        write to it [A3]. If the active segment is empty, the new segment gets the empty segment's name.
        Raises OSError; the call may be repeated then.
        """
        segments, active = self.segments, self.segments.active
        segment = new_segment(self.pool, segments.directory, active.end.next_offset, self.config)
        make_files(segment)
        if active.end.position:
            active.segment.size = active.end.position
            active.segment.sealed = True
            segments.append(segment)
        else:
            segments.replace_last(segment)
        segments.activate(ActiveSegment(segment, self.config, segment.base_offset))
        if tail.c.share:  # the log may be sealed although this writer does not share it
            tail.c.share.is_sealed = 0
        self.rolled(segment.base_offset)

    def make_ready(self, header: Any, batches: int) -> None:
        """Make room for another process's append of `batches` batches: roll if necessary, and reserve room in
        the indexes. `header` (`seg_batch *`) describes the append as if it were a single batch, with the
        size, offsets and time of all batches. Raises StorageError, RecordTooLargeError; the log is unchanged
        then.
        """
        self.check_leads()
        self.begin_epoch()
        when = int(header.max_timestamp)
        # From `when` the other process decides whether the segment is too old, even if the topic is
        # LogAppendTime. So this process must use `when`, too.
        clock = self.clock if when < 0 else lambda: when
        part = ChunkPart(cast("Encoded", _AskedAppend(header)), 0, 1, 0, header.size)
        try:
            if not self.segments.active.room(part, clock, more=batches - 1):
                self.roll_apart()
                if not self.segments.active.room(part, clock, more=batches - 1):
                    raise RecordTooLargeError(
                        f"an append is larger than segment.bytes={self.config.segment_bytes}"
                    )
        except OSError as error:
            self.judge(error, header.size)
            raise
        end = self.segments.active.end
        # C compares `rolled_ms`, the time of the segment's first batch, with the time of each append.
        if header.size and (end.rolled_ms < 0 or not end.position):
            end.rolled_ms = clock()

    def roll_apart(self, base_offset: int | None = None) -> None:
        """Roll outside of an append. If a failed append is not undone yet, undo it first. Raises
        StorageError; then the log has not changed.
        """
        self.check()
        self.pending_undo = AppendUndo(self.segments)
        try:
            self.roll(base_offset)
        except BaseException as error:
            self.take_back()
            self.judge(error)
            raise
        self.pending_undo = None

    def judge(self, error: BaseException, need: int = 0) -> None:
        """If `error` comes from the disk, raise StorageError from it. The error has stopped an append of
        `need` bytes.
        """
        if is_refusal(error) and not isinstance(error, SegstoreError):
            if error.errno in NO_ROOM:
                self.no_room(error, need)
            raise StorageError(error.errno, error.strerror, error.filename) from error

    # --- undo -----------------------------------------------------------------------------

    def put_back(self, undo: AppendUndo) -> None:
        """Undo all writes since `undo` was made."""
        self.pending_undo = undo
        self.take_back()

    def take_back(self) -> None:
        """Undo an unfinished append, if there is one. If the disk has no room for the undo, the undo is tried
        again before the next append; if the disk fails, the partition is fenced. An error that a signal
        handler raises ends the call; the undo is then continued before the next append, or before readers get
        a new view of the log.
        """
        # The append is undone in memory first, so that it is never visible, even if the undo on disk fails.
        self.recall()  # only a signal handler can raise OSError here
        if self.pending_undo is None:
            return
        try:
            self._undo(self.pending_undo)
        except OSError as error:
            if not is_refusal(error):
                raise
            if error.errno in NO_ROOM:
                return
            self.segments.fence(error)
        self.pending_undo = None

    def recall(self, but: AtomicPublish | None = None) -> None:
        """Undo an unfinished append in memory only, unless the append belongs to `but`, a publication that
        makes the append final now. The call may be repeated.
        """
        undo = self.pending_undo
        if undo is None or (but is not None and undo.together is but):
            return
        if undo.together is not None and undo.together.done:  # the append is final
            self.pending_undo = None
            return
        if undo.rolled is None:
            undo.rolled = self.segments.after(undo.active.segment)
        self.segments.cut_after(undo.active.segment)
        self.segments.activate(undo.active)
        undo.active.recall(undo.mark)
        self.producers.recall(undo.saved)

    def _undo(self, undo: AppendUndo) -> None:
        """Undo an append on disk. The call may be repeated after any failure of an earlier call. Raises
        OSError.
        """
        mark, segment, rolled = undo.mark, undo.active.segment, undo.rolled or []
        for gone in reversed(rolled):
            self.producers.forget_snapshot(gone.base_offset)
            remove_segment(gone)
            self.segments.removals += 1
        if undo.aborts >= 0:
            cut_index(self.pool.files, segment, undo.aborts)
        if segment.sealed:
            self.pool.files.truncate(self.segments.active.handle, mark.position)
            self._reopen(undo, segment, mark)
        else:
            self.segments.active.rewind(mark)

    def _reopen(self, undo: AppendUndo, segment: Segment, mark: Mark) -> None:
        """Make a sealed segment active again, to undo a roll. Raises OSError; then the segment is sealed
        again.
        """
        segment.sealed = False
        segment.attach(None)
        try:
            # Both attributes are set in one statement, because a repeated undo must find the new object in
            # both.
            undo.active = self.segments.active = ActiveSegment(segment, self.config, mark.next_offset)
        except BaseException:
            segment.sealed = True
            raise
