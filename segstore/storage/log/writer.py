"""The writer of a partition's log: it gives offsets, writes, rolls, and takes back failed appends.

On disk are the active segment's files; a roll makes the next segment's files and a producer snapshot, and the
abort of a transaction adds to the `.txnindex`. Threads: the holder of the partition's append token. Nothing
is visible before `Visible.show` is called, after the bytes are written.
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
"""Takes in batches (the memory of `seg_batch`) of producers that were written; returns the transactions that
they abort.
"""
Aborted = list[tuple[Segment, AbortedTxn]]
"""Aborted transactions, each with the segment that has its marker."""


def _ignored(error: OSError, need: int = 0) -> None:
    """Tell nobody."""


def _not_taken_back(directory: str) -> StorageError:
    return StorageError(errno.ENOSPC, "no room even to take back an append that failed", directory)


class _AskedAppend(NamedTuple):
    """What another process wants to append, as far as `ActiveSegment.room` looks at it."""

    headers: Any


class AppendUndo:
    """The state of the log before an append, from which the append can be taken back. Once `together` is done
    the append stays.

    `saved` is the state of the producers whose batches are appended. `aborts` is the size in bytes of the
    active `.txnindex`, -1 where the append leaves it as it is; `rolled` the segments made since, None before
    anything was taken back. `need` is the bytes of the append; of a long one, those up to the chunk that is
    written.
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
        self.owed: AppendUndo | None = None
        """The state before an append, kept until all of the append is written. It is noted before anything
        changes: whatever fails or a signal handler raises, also while an append is taken back, this says what
        to undo."""
        self.follows = False
        """Whether only batches of a leader are appended, since this is a replica that does not lead."""
        self.demoted = ""
        """Why no application's append is taken, since the store was demoted; "" where it was not."""
        self.term: LeaseTerm | None = None
        """The term of the lease by which the store leads, None where it needs none."""
        self.save_epochs: Callable[[], None] | None = None
        """Writes the file of leader epochs, which has `epoch` before a batch has it; None where it does."""
        self.no_room: Callable[[OSError, int], object] = _ignored
        """Is given the error and the bytes of each append that finds no room, with the append token held."""
        self.recent: RecentAppends | None = None
        """Where a leader keeps what it has appended, for its followers; None without any."""

    # --- appends --------------------------------------------------------------------------

    def write(self, chunks: Iterable[Encoded], claim: ProducerAppendInfo | ExpectedEnd | None = None) -> int:
        """Append all of the chunks, or nothing; returns the first offset. Raises StorageError; the log is as
        before then.

        With a `claim`, the append is judged first, which raises the errors of `append_info.judge`. A repeated
        append is not written, and has the first offset of the batches that it repeats. Raises
        OffsetMismatchError where the log does not end as an append expects.
        """
        segments = self.segments
        leads = not self.follows and self.term is None
        if not leads or self.owed is not None or segments.fenced is not None or segments.closed:
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
        """Append batches that no producer with an id wrote. Raises StorageError, as `write`."""
        self.check_leads()
        self._attempt(chunks)

    def write_as_follower(self, chunk: Encoded) -> None:
        """Append batches as a leader wrote them, with its offsets and epochs, of any producers, and markers.
        The caller has compared the offsets with the log's end. Raises StorageError, as `write`;
        CorruptRecordError where a marker can't be read.
        """
        self.check()
        ids = chunk.batches["producer_id"]
        if (ids < 0).all():
            self._attempt([chunk], as_is=True)
            return
        saved = self.producers.save([each for each in set(ids.tolist()) if each >= 0])
        self._attempt([chunk], saved, partial(self.producers.take_as_follower, data=chunk.buffer), as_is=True)

    def write_marker(self, marker: Marker, together: AtomicPublish) -> int:
        """Append a transaction marker; returns its offset. Raises StorageError, as `write`. The marker stays
        if `together` is done; else `take_back`, or the next view that is made, removes it.
        """
        self.check_leads()
        saved = self.producers.save([marker.producer_id])
        take = partial(self.producers.take, marker=marker)
        return self._attempt([end_marker(marker, self.clock())], saved, take, together).mark.next_offset

    def check(self) -> None:
        """Raise StoreClosedError, or StorageError where nothing can be appended."""
        segments = self.segments
        if not segments.closed and self.is_whole():
            return
        segments.check()
        self.no_room(_not_taken_back(segments.directory), 0)
        raise _not_taken_back(segments.directory)

    def check_leads(self) -> None:
        """Do what `check` does, for an append that no leader has made. Raises NotLeaderOrFollowerError;
        DemotedError where the store leads no more, or its lease's term is over.
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
        """Return whether the log on disk ends where it should. What a failed append has left is taken back
        now, if that is still to be done and there is room again.
        """
        if self.owed is not None:
            self.take_back()
        return self.segments.fenced is None and self.owed is None

    def _attempt(
        self,
        chunks: Iterable[Encoded],
        saved: Sequence[Saved] = (),
        take: Take | None = None,
        together: AtomicPublish | None = None,
        as_is: bool = False,
    ) -> AppendUndo:
        """Write the chunks, or take them back. Without `together` the append stays when this returns. `take`
        is given the batches of producers with an id; `as_is`: the batches keep their offsets and epochs.
        """
        self.begin_epoch()
        restore = self.owed = AppendUndo(self.segments, saved, together)
        try:
            if isinstance(chunks, list):
                restore.need = sum(chunk.size for chunk in chunks)
                aborted = self._write_ready(chunks, take, as_is)
            else:
                aborted = self._write_long(chunks, take, restore)
            if aborted:
                self._add_aborted(restore, aborted)
        except BaseException as error:
            self.take_back()
            self.judge(error, restore.need)
            raise
        if together is None:
            self.owed = None
            if self.recent is not None and isinstance(chunks, list) and not as_is:
                self.recent.keep(chunks)
                return restore
        for chunk in chunks:  # those of a long append are released by now
            if chunk.pooled:
                chunk.release()
        return restore

    def begin_epoch(self) -> None:
        """Let the file of leader epochs have the one under which is written. Raises StorageError."""
        if self.save_epochs is not None:
            try:
                self.save_epochs()
            except OSError as error:
                self.judge(error)
                raise
            self.save_epochs = None

    def _write_ready(self, chunks: list[Encoded], take: Take | None, as_is: bool = False) -> Aborted:
        """Write chunks that are encoded: by one call of the system what goes into one segment."""
        # Batches that are kept as they are have their leader's stamp.
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
        """Make room for the first part, or for as much of it as fits: that is split off. Returns 1: the first
        part fits now; 0 behind a roll. Raises OSError.
        """
        first, more = parts[0], sum(part.n for part in parts[1:])
        fit = self.segments.active.room(first, self.clock, as_is, more)
        if not fit:
            self.roll(first.headers[0].base_offset if as_is else None)
        elif fit < first.n:
            parts[:1] = first.split(fit)
        return int(fit > 0)

    def _write_long(self, chunks: Iterable[Encoded], take: Take | None, restore: AppendUndo) -> Aborted:
        """Write chunks of a long append, each one before the next is encoded: the next one takes the same
        memory.
        """
        aborted: Aborted = []
        for chunk in chunks:
            restore.need += chunk.size
            aborted += self._write_ready([chunk], take)
            chunk.release()
        return aborted

    def _add_aborted(self, restore: AppendUndo, aborted: Aborted) -> None:
        """Note aborted transactions in the `.txnindex` of the segments that have their markers."""
        for segment, found in groupby(aborted, itemgetter(0)):
            if segment is restore.active.segment:  # else the `.txnindex` is removed with the segment
                restore.aborts = index_size(self.pool.files, segment)
            add_aborted(self.pool.files, segment, [txn for _, txn in found])

    def roll(self, base_offset: int | None = None) -> None:
        """Seal the active segment and go on in a new one, which begins at `base_offset`, or else at the log's
        end. Raises OSError.
        """
        segments, active = self.segments, self.segments.active
        begin = active.end.next_offset if base_offset is None else base_offset
        if not active.end.position and begin == active.segment.base_offset:
            raise RecordTooLargeError(
                f"a batch is larger than segment.bytes={self.config.segment_bytes} allows"
            )
        # Trimmed first: to other processes the next segment's name says that this one is sealed.
        active.trim()
        segment = new_segment(self.pool, segments.directory, begin, self.config)
        segments.append(segment)  # first: `take_back` removes the files that were made, or fences
        make_files(segment)
        segments.activate(ActiveSegment(segment, self.config, begin))
        active.seal()
        self.rolled(segment.base_offset)  # a producer snapshot, and a flush in the background

    def leave_sealed(self, tail: NativeTail) -> None:
        """Go on in a new segment, since the active one was sealed while another process may still write to it
        [A3]. An empty one gives its name to other files. Raises OSError; may be repeated then.
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
        if tail.c.share:  # of a host; a writer that does not share finds a sealed log, too
            tail.c.share.is_sealed = 0
        self.rolled(segment.base_offset)

    def make_ready(self, header: Any, batches: int) -> None:
        """Make room for an append of so many batches by another process, of which `header` (`seg_batch *`)
        says size, offsets and time as if it were one batch: roll, and take room in the indexes. Raises
        StorageError, RecordTooLargeError; the log is as before then.
        """
        self.check_leads()
        self.begin_epoch()
        when = int(header.max_timestamp)
        # The other process measures by this time, also where its clock stamps the records.
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
        if header.size and (end.rolled_ms < 0 or not end.position):  # C asks for it
            end.rolled_ms = clock()

    def roll_apart(self, base_offset: int | None = None) -> None:
        """Roll outside of an append, as `roll`, after what a failed append left was taken back. Raises
        StorageError; the log is as before then.
        """
        self.check()
        self.owed = AppendUndo(self.segments)
        try:
            self.roll(base_offset)
        except BaseException as error:
            self.take_back()
            self.judge(error)
            raise
        self.owed = None

    def judge(self, error: BaseException, need: int = 0) -> None:
        """Raise an error of the disk, which has kept an append of `need` bytes from its end, as
        StorageError.
        """
        if is_refusal(error) and not isinstance(error, SegstoreError):
            if error.errno in NO_ROOM:
                self.no_room(error, need)
            raise StorageError(error.errno, error.strerror, error.filename) from error

    # --- taking back ----------------------------------------------------------------------

    def put_back(self, restore: AppendUndo) -> None:
        """Undo all that was written since `restore` was made, as `take_back` does."""
        self.owed = restore
        self.take_back()

    def take_back(self) -> None:
        """Undo an append that was begun and not finished, if there is one. Where the disk has no room for
        that, the undo is tried again before the next append; where the disk refuses, the partition is fenced.
        Anything else, such as an error of a signal handler, is raised: then the next append, or view, begins
        with the rest.

        The end goes back in memory first: what failed is never visible, whatever the disk says.
        """
        self.recall()  # in memory only: an OSError that comes here is a signal handler's
        if self.owed is None:
            return
        try:
            self._undo(self.owed)
        except OSError as error:
            if not is_refusal(error):
                raise
            if error.errno in NO_ROOM:
                return
            self.segments.fence(error)
        self.owed = None

    def recall(self, but: AtomicPublish | None = None) -> None:
        """Let the log in memory end where it did before an append that was begun and not finished, unless
        that append belongs to `but`, which is just being finished; the disk is left as it is. May be
        repeated.
        """
        owed = self.owed
        if owed is None or (but is not None and owed.together is but):
            return
        if owed.together is not None and owed.together.done:  # the append is finished
            self.owed = None
            return
        if owed.rolled is None:
            owed.rolled = self.segments.behind(owed.active.segment)
        self.segments.cut_behind(owed.active.segment)
        self.segments.activate(owed.active)
        owed.active.recall(owed.mark)
        self.producers.recall(owed.saved)

    def _undo(self, restore: AppendUndo) -> None:
        """Undo an append on disk. May be repeated, whatever an earlier try has done. Raises OSError."""
        mark, segment, rolled = restore.mark, restore.active.segment, restore.rolled or []
        for gone in reversed(rolled):
            self.producers.forget_snapshot(gone.base_offset)
            remove_segment(gone)
            self.segments.removals += 1
        if restore.aborts >= 0:
            cut_index(self.pool.files, segment, restore.aborts)
        if segment.sealed:
            self.pool.files.truncate(self.segments.active.handle, mark.position)
            self._reopen(restore, segment, mark)
        else:
            self.segments.active.rewind(mark)

    def _reopen(self, restore: AppendUndo, segment: Segment, mark: Mark) -> None:
        """Go on in a segment that a roll had sealed. Raises OSError; the segment is as before then."""
        segment.sealed = False
        segment.attach(None)
        try:
            # Both names change in one step: whatever is repeated from here on is done to the new object.
            restore.active = self.segments.active = ActiveSegment(segment, self.config, mark.next_offset)
        except BaseException:
            segment.sealed = True
            raise
