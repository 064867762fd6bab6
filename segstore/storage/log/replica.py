"""What replication does to the log of a replica: it appends what a leader wrote, cuts what the leader lacks,
and begins leader epochs (Kafka: UnifiedLog.appendAsFollower, truncateTo, truncateFullyAndStartAt).

On disk are the partition's files, `leader-epoch-checkpoint`, and copies of what was cut, in the quarantine. A
crash in a truncation leaves the log as before, or cut; what is left to be cut, the leader says again.
Threads: any, one at a time: replication calls for one partition come one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore._native import ffi, lib
from segstore.arrays import np
from segstore.errors import CorruptRecordError, InvalidArgumentError
from segstore.integers import INT64_MAX
from segstore.leader_epochs import LeaderEpochCache
from segstore.records import Encoded, bring_up, is_old, scan
from segstore.storage.context import os_errors
from segstore.storage.log.append import SLOW, undone
from segstore.storage.log.partition import Partition
from segstore.storage.log.raw_read import is_gap, raw_read
from segstore.storage.log.recent_appends import RecentAppends
from segstore.storage.segment import index_files
from segstore.storage.segment.active import ActiveSegment
from segstore.storage.segment.batch_scan import BAD
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.quarantine import keep_batches
from segstore.storage.segment.segment import Segment
from segstore.storage.segment.segment_files import create_segment, new_segment, remove_segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from segstore.storage.segment.native_tail import NativeTail

_FEW = 16
"""The most batches that C appends by one call; one call more for each piece of many costs nothing."""


class Truncated(NamedTuple):
    """What a truncation has cut: bytes of the log, from `end_offset` on, where the log ends now. `kept` are
    paths of copies in the quarantine.
    """

    end_offset: int
    cut_bytes: int = 0
    kept: tuple[str, ...] = ()


class Replica:
    """One partition's log as a replica, which readers see up to `high_watermark`; None where that is set
    already. `recovery_point_moved` makes a lower recovery point durable, and `start_moved` a log start
    offset; `quarantine` is the directory for what is cut.
    """

    def __init__(
        self,
        partition: Partition,
        high_watermark: int | None,
        quarantine: str,
        recovery_point_moved: Callable[[int], None],
        start_moved: Callable[[int], None],
    ) -> None:
        self._partition, self._epochs, self._quarantine = partition, partition.epochs, quarantine
        self._headers: Any = None  # room for those of batches that C appends
        self.recent = RecentAppends()
        """What was appended last, if this replica leads, and `keep_recent` was called."""
        self._recovery_point_moved, self._start_moved = recovery_point_moved, start_moved
        if high_watermark is not None:
            with partition.token:
                partition.visible.begin_replica(high_watermark)

    # --- offsets --------------------------------------------------------------------------

    @property
    def log_end_offset(self) -> int:
        """Return the offset behind the last batch that was written (LEO). Raises StoreClosedError where the
        partition was removed.
        """
        return self._partition.visible.log_end_offset

    @property
    def start_offset(self) -> int:
        """Return the log start offset."""
        return self._partition.visible.start_offset

    @property
    def high_watermark(self) -> int:
        """Return the offset below which readers see the log, at most LEO. Raises StoreClosedError."""
        return self._partition.visible.high_watermark

    def set_high_watermark(self, offset: int) -> None:
        """See `Visible.set_high_watermark`."""
        with os_errors():
            self._partition.visible.set_high_watermark(offset)

    def set_start_offset(self, offset: int) -> None:
        """Move the log start offset up to that of the leader, but not above the high watermark (R13);
        segments wholly below it are removed. A lower `offset` changes nothing. Raises StorageError.
        """
        partition = self._partition
        with os_errors():
            offset = min(offset, partition.visible.high_watermark)
            if offset > partition.visible.start_offset:
                partition.log_start.delete_records(offset)

    @property
    def fenced(self) -> BaseException | None:
        """Return the error because of which nothing may be appended before the store is opened anew, None
        without one.
        """
        return self._partition.segments.fenced

    @property
    def written(self) -> LogView:
        """Return a view of the whole log, shown or not. Raises StoreClosedError."""
        return self._partition.visible.written

    def flush(self) -> None:
        """Make all of the log durable. Raises StorageError; the log is fenced then."""
        self._partition.flush()

    # --- roles ----------------------------------------------------------------------------

    def lead(self, epoch: int) -> None:
        """Lead from now on: begin the leader epoch at the log's end, then take appends of applications, which
        are written under it (R3): whoever finds one of them after a power cut finds the epoch in it.

        The file of epochs is written by `save_epochs`, or before the first append: until then a crash leaves
        a log in which nothing was written under the epoch, and which an open lets forget it.

        Nothing is changed but that where `epoch` is the latest already. Raises InvalidArgumentError for an
        epoch below the latest.
        """
        partition = self._partition
        with os_errors(), partition.token:
            latest = self._epochs.current
            if epoch < latest:
                raise InvalidArgumentError(
                    f"leader epoch {epoch}: must not be below the latest one, {latest}"
                )
            if epoch > latest:
                self._epochs.assign(epoch, partition.segments.next_offset)
                partition.writer.save_epochs = self._save_epochs
                self._show_epoch()
            partition.writer.follows = False

    def keep_recent(self) -> None:
        """Keep in memory what is appended from now on, until this replica follows: see `recent`."""
        with self._partition.token:
            self._partition.writer.recent = self.recent

    def save_epochs(self) -> None:
        """Let the file have the leader epoch under which this replica leads, if it has not yet. Raises
        StorageError: then the next append tries that again.
        """
        partition = self._partition
        if partition.writer.save_epochs is not None:
            with os_errors(), partition.token:
                partition.writer.begin_epoch()

    def _save_epochs(self) -> None:
        """Write the file; the caller holds the append token."""
        self._epochs.save(sync=False)
        self._partition.flusher.names_changed()

    def follow(self) -> int:
        """Take no application's append any more: each is in the log below the offset that is returned, the
        log end offset, or is refused with NotLeaderOrFollowerError.
        """
        partition = self._partition
        with os_errors(), partition.token:
            partition.writer.recall()
            partition.writer.follows = True
            partition.writer.recent = None
            self.recent.clear()
            return partition.segments.next_offset

    # --- reads ----------------------------------------------------------------------------

    def read(
        self, offset: int, end_offset: int, max_bytes: int, into: NDArray[np.uint8] | None = None
    ) -> bytes | memoryview:
        """Return whole batches as they are stored, for a follower: from the one that holds `offset`, or
        follows it, up to `end_offset`, which is not above LEO. They are `max_bytes` at most, but at least one
        batch where there is any. No CRC is checked, and no lock is taken. What fits the memory `into` lies
        there; that may end within a batch, or beyond `end_offset`.

        Raises OffsetOutOfRangeError where `offset` is not in [start_offset, LEO]; CorruptRecordError where a
        header at `offset` is damaged; StorageError, StoreClosedError.
        """
        with os_errors():
            return raw_read(self._partition, offset, end_offset, max_bytes, into)

    def is_gap(self, offset: int, end_offset: int) -> bool:
        """Return whether no batch lies between these offsets. Raises as `read`, and CorruptRecordError where
        damage does.
        """
        with os_errors():
            return is_gap(self._partition, offset, end_offset)

    # --- epochs ---------------------------------------------------------------------------

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """Return the pairs of leader epoch and start offset, rising."""
        return self._epochs.entries

    @property
    def epoch_cache(self) -> LeaderEpochCache:
        """Return the leader epochs as the log keeps them. Only replication changes the log's epochs, so its
        own thread may read them without a lock; others take a `copy` under the lock that orders these calls.
        """
        return self._epochs

    def begin_epoch(self, epoch: int) -> None:
        """Begin a leader epoch at the log's end: this replica leads, and later appends are written under
        it (R3). Raises InvalidArgumentError for an epoch that is not above the latest; StorageError.
        """
        partition = self._partition
        with os_errors(), partition.token:
            latest = self._epochs.current
            if epoch <= latest:
                raise InvalidArgumentError(f"leader epoch {epoch}: must be above the latest one, {latest}")
            end = partition.segments.next_offset
            self._change_epochs(lambda: self._epochs.assign(epoch, end), sync=False)

    # --- appends --------------------------------------------------------------------------

    def append_as_follower(self, data: bytes | memoryview, high_watermark: int = -1) -> int:
        """Append whole batches as a leader wrote them, with its offsets, leader epochs and CRCs (R1); returns
        the log end offset. Offsets may have gaps, and batches of other epochs may lie side by side. A batch
        that `data` ends within is left out, as a fetch may end anywhere. Messages of magic 0 and 1, which a
        broker may send, are brought up to magic 2. The log is shown up to the leader's `high_watermark` where
        that is higher than this one's: so it is published once.

        Raises CorruptRecordError where a batch is damaged, and InvalidArgumentError where the batches don't
        follow the log's end, or their leader epochs fall: nothing is appended then. Raises StorageError.
        """
        chunk = checked(data)
        return self.log_end_offset if chunk is None else self.append_checked(chunk, high_watermark)

    def append_checked(self, chunk: Encoded, high_watermark: int = -1) -> int:
        """Do what `append_as_follower` does with what `checked` has returned."""
        partition, batches = self._partition, chunk.batches
        with os_errors(), partition.token:
            self._check_follows(batches)
            before = self._epochs.entries
            if int(batches["leader_epoch"][-1]) != self._epochs.current:
                self._change_epochs(lambda: self._assign_epochs(batches), sync=False)
            try:
                partition.writer.write_as_follower(chunk)
            except BaseException:
                # The next fetch may end before these epochs begin, or bring others.
                self._restore_epochs(before)
                raise
            else:
                end = int(batches["last_offset"][-1]) + 1
                partition.visible.raise_high_watermark(min(high_watermark, end))
            finally:
                partition.show()
        partition.flushing.flush_if_due(end)
        return end

    def append_next(self, data: bytes | memoryview, high_watermark: int) -> int | None:
        """Do what `append_as_follower` does with whole batches that go on where the log ends, all under the
        latest leader epoch, and show the log up to a high watermark, which does not go back; return the log
        end offset. None, and nothing is done, where `data` is anything else. Raises StorageError.
        """
        partition = self._partition
        if partition.tail.native.is_open:
            taken = self._append_short(partition.tail.native, data, high_watermark)
            if taken >= 0:
                return taken
        batches, stop = scan(data)
        if not len(batches) or stop.status != lib.SEG_END:
            return None
        end = int(batches["last_offset"].item(-1)) + 1
        with os_errors(), partition.token:
            follows = batches["base_offset"].item(0) >= partition.segments.next_offset
            if not follows or not self._is_latest(batches["leader_epoch"]):
                return None
            try:
                partition.writer.write_as_follower(Encoded.of(data, batches))
                partition.visible.raise_high_watermark(min(high_watermark, end))
            finally:
                partition.show()
            if len(batches) <= _FEW:  # the next may be C's
                partition.tail.open_behind(partition.validator)
        partition.flushing.flush_if_due(end)
        return end

    def _append_short(self, tail: NativeTail, data: bytes | memoryview, high_watermark: int) -> int:
        """Do what `append_next` does by one call of C; return the log end offset, or SLOW: nothing is done
        then. Raises StorageError.
        """
        due, late = tail.due, tail.late
        now = lib.SEG_NOW if tail.clock is None else tail.clock()
        if self._headers is None:
            self._headers = ffi.new("seg_batch[]", _FEW)
        end: int = lib.seg_tail_follow(
            tail.c, ffi.from_buffer("uint8_t[]", data), len(data), high_watermark, self._headers, _FEW, now
        )
        if end < 0:
            return end if end == SLOW else undone(self._partition.tail, end, len(data))
        if due is not None:
            due(end)
        elif late is not None and end - tail.commit.synced >= tail.c.flush_messages:
            late(end)
        return end

    def go_on_at(self, offset: int, epoch: int) -> None:
        """Let the log go on at `offset`, above its end, in a new segment, and let a leader epoch begin there,
        where that is not -1: the leader has no batch before it (R41). A power cut may take the new segment.
        Raises StorageError.
        """
        partition = self._partition
        with os_errors(), partition.token:
            before = self._epochs.entries
            if epoch >= 0:
                self._change_epochs(lambda: self._epochs.assign(epoch, offset), sync=False)
            try:
                partition.writer.roll_apart(offset)
            except BaseException:
                self._restore_epochs(before)
                raise
            finally:
                partition.show()

    def _restore_epochs(self, before: Sequence[tuple[int, int]]) -> None:
        """Let the epochs be as before what failed, in the file too where that can be written."""
        if self._epochs.entries != before:
            self._go_back_to(before)
            with suppress(OSError):
                self._epochs.save(sync=False)

    def _is_latest(self, epochs: NDArray[np.int32]) -> bool:
        """Return whether all these leader epochs are the latest. Of one, the usual count, numpy is not
        asked.
        """
        latest = self._epochs.current
        return epochs.item(0) == latest and (len(epochs) == 1 or bool((epochs == latest).all()))

    def _check_follows(self, batches: NDArray[np.void]) -> None:
        end, latest = self._partition.segments.next_offset, self._epochs.current
        first, epochs = batches["base_offset"].item(0), batches["leader_epoch"]
        if first < end:
            raise InvalidArgumentError(f"offset {first} does not follow the log, which ends at {end}")
        if (epochs == latest).all():
            return
        epochs = epochs[epochs >= 0]  # what was brought up has none
        if len(epochs) and (int(epochs[0]) < latest or (np.diff(epochs) < 0).any()):
            raise InvalidArgumentError(
                f"leader epochs {epochs.tolist()} fall, or lie below the latest, {latest}"
            )

    def _assign_epochs(self, batches: NDArray[np.void]) -> None:
        """Note the epochs that begin in these batches."""
        latest = self._epochs.current
        epochs, first = np.unique(batches["leader_epoch"], return_index=True)
        for epoch, base in zip(epochs.tolist(), batches["base_offset"][first].tolist(), strict=True):
            if epoch > latest:
                self._epochs.assign(epoch, base)

    def _change_epochs(self, change: Callable[[], object], *, sync: bool) -> None:
        """Change the leader epochs, in the file too, before what is written under them; the log is published
        under the latest. Without `sync` the next flush makes the file durable: a power cut before it may
        leave an older file, and then the batches tell which epochs there are. The caller holds the append
        token. Raises OSError; the epochs are as before then.
        """
        before = self._epochs.entries
        change()
        if self._epochs.entries == before:
            return
        try:
            self._epochs.save(sync=sync)
            if not sync:
                self._partition.flusher.names_changed()
            self._partition.writer.save_epochs = None
            self._show_epoch()
        except BaseException as error:
            self._go_back_to(before)
            self._partition.writer.judge(error)
            raise

    def _show_epoch(self) -> None:
        """Write, and publish, under the latest epoch from now on."""
        self._partition.writer.epoch = self._epochs.current
        self._partition.visible.begin_epoch(self._epochs.current)

    def _go_back_to(self, before: Sequence[tuple[int, int]]) -> None:
        """Let the epochs be as before a change that was not finished. The file may have later ones, as after
        a kill, until the next change.
        """
        self._epochs.truncate_from_end(0)
        for entry in before:
            self._epochs.assign(*entry)
        self._partition.writer.epoch = self._epochs.current
        self._partition.visible.publisher.begin_epoch(self._epochs.current)

    # --- truncation -----------------------------------------------------------------------

    def truncate_to(self, offset: int) -> Truncated:
        """Cut the log behind its last whole batch below `offset`, and what was known of it: leader epochs,
        producers, aborted transactions (R5; UnifiedLog.truncateTo). Copies of the batches are kept in the
        quarantine. From the log's end on only epochs that began there are forgotten; below the first segment
        this begins the log anew, as `truncate_fully_and_start_at`.

        Raises StorageError; the partition is fenced then, unless nothing was changed.
        """
        partition = self._partition
        with os_errors(), partition.admin, partition.naming:
            if offset < partition.segments[0].base_offset:
                kept = self._keep_all(self._ahead().segments)
                return self._start_at(offset)._replace(kept=kept)
            with partition.token:
                partition.writer.check()
                if offset >= partition.segments.next_offset:
                    self._forget_epochs(partition.segments.next_offset)
                    return Truncated(partition.segments.next_offset)
                return self._cut(offset)

    def truncate_fully_and_start_at(self, offset: int) -> Truncated:
        """Remove all of the log, and begin it anew at `offset`, without epochs and producers (R6). What is
        removed is not kept: the leader has deleted it, too. Errors as `truncate_to`.
        """
        with os_errors(), self._partition.admin, self._partition.naming:
            return self._start_at(offset)

    def cut_damaged(self, offset: int) -> Truncated:
        """Cut the segment that holds `offset`, and all behind it, without looking at batches there, since
        they are damaged or missing; nothing is appended meanwhile. The log ends behind the last batch before.
        Where that is the first segment, the log begins anew at its start offset. Copies of what has whole
        batches are kept in the quarantine. Errors as `truncate_to`.
        """
        partition = self._partition
        with os_errors(), partition.admin, partition.naming:
            view = self._ahead()
            slot = view.slot(offset)
            kept = self._keep_all(view.segments[slot:])
            if slot == 0:
                return self._start_at(view.start_offset)._replace(kept=kept)
            with partition.token:
                partition.writer.check()
                before = view.segments[slot - 1]
                end = before.last_offset_before(before.size) + 1
                cut = sum(segment.size for segment in view.segments[slot:])
                return self._cut_at(view, slot - 1, before.size, end, Truncated(end, cut, kept))

    def keep_all(self) -> tuple[str, ...]:
        """Copy all of the log into the quarantine, before its topic is deleted; return the paths of the
        copies, which are durable. Raises StorageError.
        """
        partition = self._partition
        with os_errors(), partition.admin, partition.naming:
            return self._keep_all(self._ahead().segments)

    def _ahead(self) -> LogView:
        """Return a view of all that was written, by C too."""
        with self._partition.token:
            return self._partition.visible.ahead()

    def _keep_all(self, segments: Sequence[Segment]) -> tuple[str, ...]:
        kept = []
        for segment in segments:
            with suppress(FileNotFoundError):  # there is nothing to keep of a file that is missing
                kept.append(keep_batches(self._quarantine, segment, 0))
        return tuple(path for path in kept if path is not None)

    def _cut(self, offset: int) -> Truncated:
        view = self._partition.visible.ahead()
        slot, position, end = self._place(view, offset)
        pieces = [(s, position if n == slot else 0) for n, s in enumerate(view.segments) if n >= slot]
        kept = [path for s, at in pieces if (path := keep_batches(self._quarantine, s, at)) is not None]
        cut = sum(segment.size - at for segment, at in pieces)
        return self._cut_at(view, slot, position, end, Truncated(end, cut, tuple(kept)))

    def _cut_at(self, view: LogView, slot: int, position: int, end: int, done: Truncated) -> Truncated:
        partition = self._partition
        high_watermark = min(partition.visible.high_watermark, end)
        self._change(end, lambda: self._cut_files(view, slot, position, end), high_watermark)
        self._forget_epochs(end)
        return done

    def _place(self, view: LogView, offset: int) -> tuple[int, int, int]:
        """Return slot and position of the first batch that does not lie below `offset` whole, and the offset
        behind the batch before it.
        """
        slot = view.slot(offset)
        segment = view.segments[slot]
        found = segment.locate(offset, segment.size)
        if found is None:  # nothing is behind it in its segment, but in the next one
            return slot, segment.size, segment.last_offset_before(segment.size) + 1
        position = int(found.position)
        return slot, position, max(segment.last_offset_before(position) + 1, segment.base_offset)

    def _cut_files(self, view: LogView, slot: int, position: int, end: int) -> None:
        partition, segment = self._partition, view.segments[slot]
        files, segments = partition.context.files, partition.segments
        if view.start_offset > end:
            self._move_start(end)
        for gone in reversed(view.segments[slot + 1 :]):
            remove_segment(gone)
        segments.cut_behind(segment)
        files.sync_dir(partition.directory)
        # Others may have the index files of a sealed segment mapped: these are replaced, not cut.
        segment.hold(segment.handle, index_files.begin_anew(segment))
        with files.open(segment.path, write=True) as handle:
            files.truncate(handle, position)
            files.sync(handle)
        partition.context.pool.forget(segment.path)
        # Another object: what a compaction has made of the old one must not take the place of this one.
        left = new_segment(partition.context.pool, partition.directory, segment.base_offset, partition.config)
        left.unsynced_aborts, left.may_be_old = segment.unsynced_aborts, segment.may_be_old
        segments.replace_last(left)
        segments.activate(ActiveSegment.reopened_at(left, partition.config, position, end))
        partition.producers.cut([*view.segments[:slot], left], end)

    def _start_at(self, offset: int) -> Truncated:
        partition = self._partition
        with partition.token:
            partition.writer.check()
            view = partition.visible.ahead()
            cut = sum(segment.size for segment in view.segments)
            self._change(min(view.bases[0], offset), lambda: self._begin_files(view, offset), offset)
            self._forget_epochs(0)
            return Truncated(offset, cut)

    def _begin_files(self, view: LogView, offset: int) -> None:
        """Once the log start offset is durable, and lies above the log's end, the next open begins the log
        anew there, whatever is left of it. Below the first segment a new one says the same: what lies behind
        a hole is cut.
        """
        partition = self._partition
        files = partition.context.files
        self._move_start(offset)
        partition.producers.forget_all(offset)  # first: what is left of the log says who its producers are
        below = offset < view.bases[0]
        segment = self._create(offset) if below else None
        for gone in reversed(view.segments):
            remove_segment(gone)
        files.sync_dir(partition.directory)
        segment = segment or self._create(offset)
        partition.segments.cut_from(0, segment)
        partition.segments.activate(ActiveSegment(segment, partition.config, offset))

    def _create(self, offset: int) -> Segment:
        partition = self._partition
        segment = create_segment(partition.context.pool, partition.directory, offset, partition.config)
        partition.context.files.sync_dir(partition.directory)
        return segment

    def _move_start(self, offset: int) -> None:
        """Let the log begin at `offset`, durably."""
        # In memory first: a checkpoint that is written meanwhile must not have the old one.
        self._partition.visible.start_offset = offset
        self._start_moved(offset)

    def _change(self, end: int, change: Callable[[], None], high_watermark: int) -> None:
        """Change the log's files, so that nothing from offset `end` on is left, and show the log up to a high
        watermark; readers don't see what is removed when that begins. A recovery point above is lowered
        first, durably: the next open must not miss what was synced and then removed.
        """
        partition = self._partition
        visible, flusher, segments = partition.visible, partition.flusher, partition.segments

        def changed() -> None:
            visible.set_high_watermark(min(visible.high_watermark, end))
            if flusher.recovery_point > end:
                # In memory first: a checkpoint that is written meanwhile must not have the old one.
                flusher.set_recovery_point(end)
                self._recovery_point_moved(end)
                visible.publish()
            change()
            flusher.names_changed()
            segments.layout += 1
            partition.flushing.changed = True
            visible.cut(high_watermark)  # here: a sync would miss files that the view before has

        self.recent.clear()
        try:
            flusher.without_syncs(changed)
        except BaseException as error:
            segments.fence(error)
            raise

    def _forget_epochs(self, end: int) -> None:
        self._change_epochs(lambda: self._epochs.truncate_from_end(end), sync=True)


def checked(data: bytes | memoryview, end_offset: int = INT64_MAX) -> Encoded | None:
    """Return the whole batches below `end_offset` of what was fetched, as a follower writes them, None where
    there is none. Raises CorruptRecordError.
    """
    batches, stop = scan(data, end_offset=end_offset)
    if stop.status not in (lib.SEG_END, lib.SEG_SHORT, lib.SEG_STOP):
        raise CorruptRecordError("what was fetched", stop.position, stop.last_offset + 1, BAD[stop.status])
    if not len(batches):
        return None
    if is_old(batches):
        data, batches = bring_up(data, batches, "what was fetched")
    return Encoded.of(data, batches)
