"""The log of a replica. Replication appends a leader's batches to it, cuts batches that the leader lacks, and
begins leader epochs (Kafka: UnifiedLog.appendAsFollower, truncateTo, truncateFullyAndStartAt).

On disk are the partition's files, `leader-epoch-checkpoint`, and copies of cut batches, in the quarantine. A
crash during a truncation leaves the log unchanged or partly cut; replication then makes the same truncation
again. Threads: any, one at a time, because replication makes the calls for one partition one after the other.
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
"""The most batches that C appends by one call; for more batches the cost of Python code hardly matters."""


class Truncated(NamedTuple):
    """The result of a truncation: the log ends at `end_offset` now, and `cut_bytes` were removed. `kept` are
    paths of copies in the quarantine.
    """

    end_offset: int
    cut_bytes: int = 0
    kept: tuple[str, ...] = ()


class Replica:
    """One partition's log as a replica. Readers see the log up to `high_watermark`; None keeps the
    partition's current high watermark. `recovery_point_moved` makes a lower recovery point durable, and
    `start_moved` makes a log start offset durable; `quarantine` is the directory for copies of cut batches.
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
        self._headers: Any = None  # `_headers` is memory for the headers of batches that C appends
        self.recent = RecentAppends()
        """The last appends, if this replica leads and `keep_recent` was called; else empty."""
        self._recovery_point_moved, self._start_moved = recovery_point_moved, start_moved
        if high_watermark is not None:
            with partition.token:
                partition.visible.begin_replica(high_watermark)

    # --- offsets --------------------------------------------------------------------------

    @property
    def log_end_offset(self) -> int:
        """Return the log end offset (LEO): the offset after the last written batch. Raises StoreClosedError
        if the partition was removed.
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
        """Show readers the log up to `offset`, by `Visible.set_high_watermark`."""
        with os_errors():
            self._partition.visible.set_high_watermark(offset)

    def set_start_offset(self, offset: int) -> None:
        """Move the log start offset up to `offset`, the leader's log start offset, but not above the high
        watermark (R13). Segments wholly below the new start are removed. An `offset` below this log's start
        changes nothing. Raises StorageError.
        """
        partition = self._partition
        with os_errors():
            offset = min(offset, partition.visible.high_watermark)
            if offset > partition.visible.start_offset:
                partition.log_start.delete_records(offset)

    @property
    def fenced(self) -> BaseException | None:
        """Return the error because of which appends fail until the store is reopened; None if the log is not
        fenced.
        """
        return self._partition.segments.fenced

    @property
    def written(self) -> LogView:
        """Return a view of the whole log, visible or not. Raises StoreClosedError."""
        return self._partition.visible.written

    def flush(self) -> None:
        """Make the whole log durable. Raises StorageError; the log is fenced then."""
        self._partition.flush()

    # --- roles ----------------------------------------------------------------------------

    def lead(self, epoch: int) -> None:
        """Begin the leader epoch `epoch` at the log's end, and take appends of applications from now on. The
        batches of these appends have the epoch in their headers (R3). If a power cut loses the file of
        epochs, an open derives the epoch from the headers.

        The file of epochs is written by `save_epochs`, at the latest by the first append. If a crash comes
        before that, no batch has the epoch, and the next open does not restore it. If `epoch` is the latest
        already, only the role changes. Raises InvalidArgumentError for an epoch below the latest.
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
        """Keep the next appends in `recent`, until this replica becomes a follower."""
        with self._partition.token:
            self._partition.writer.recent = self.recent

    def save_epochs(self) -> None:
        """Write the file of epochs, if the file lacks the epoch under which this replica leads. Raises
        StorageError; the next append then tries again to write the file.
        """
        partition = self._partition
        if partition.writer.save_epochs is not None:
            with os_errors(), partition.token:
                partition.writer.begin_epoch()

    def _save_epochs(self) -> None:
        """Write the file of epochs; the caller holds the append token."""
        self._epochs.save(sync=False)
        self._partition.flusher.names_changed()

    def follow(self) -> int:
        """Stop taking appends of applications, and return the log end offset. Appends below that offset were
        written; later appends raise NotLeaderOrFollowerError.
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
        """Return whole batches as they are stored, for a follower: from the batch that holds `offset`, or
        else from the next batch, up to `end_offset`, which is not above LEO. At most `max_bytes` are
        returned, but at least one batch if there is any. No CRC is checked, and no lock is taken. If the
        bytes fit into the memory `into`, they are read into that memory, and a view of it is returned; the
        view may end within a batch, or beyond `end_offset`.

        Raises StorageError and StoreClosedError. Raises OffsetOutOfRangeError if `offset` is not in
        [start_offset, LEO], and CorruptRecordError if a header at `offset` is damaged.
        """
        with os_errors():
            return raw_read(self._partition, offset, end_offset, max_bytes, into)

    def is_gap(self, offset: int, end_offset: int) -> bool:
        """Return whether no batch lies between these offsets. Raises the errors of `read`, and
        CorruptRecordError if damage lies between the offsets.
        """
        with os_errors():
            return is_gap(self._partition, offset, end_offset)

    # --- epochs ---------------------------------------------------------------------------

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """Return the pairs of leader epoch and start offset, in rising order."""
        return self._epochs.entries

    @property
    def epoch_cache(self) -> LeaderEpochCache:
        """Return the log's own object of leader epochs. Only replication's thread changes the object, and may
        read it without a lock. Another thread makes a `copy`, under the lock that orders replication's calls.
        """
        return self._epochs

    def begin_epoch(self, epoch: int) -> None:
        """Begin a leader epoch at the log's end, because this replica leads; later appends are written under
        the epoch (R3). Raises StorageError, and InvalidArgumentError for an epoch that is not above the
        latest.
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
        """Append whole batches with the offsets, leader epochs and CRCs that the leader gave them (R1);
        return the log end offset. Offsets may have gaps, and epochs may change between batches. A batch that
        is cut off at the end of `data` is skipped, because a fetch may end anywhere. Messages of magic 0 and
        1, which a broker may send, are converted to magic 2. This replica's high watermark is raised to the
        leader's `high_watermark`, but not above the new log end offset, and never lowered. The batches and
        the high watermark are published together.

        Raises CorruptRecordError if a batch is damaged, and InvalidArgumentError if the batches don't follow
        the log's end, or if their leader epochs decrease. Nothing is appended after such an error. Raises
        StorageError.
        """
        chunk = checked(data)
        return self.log_end_offset if chunk is None else self.append_checked(chunk, high_watermark)

    def append_checked(self, chunk: Encoded, high_watermark: int = -1) -> int:
        """Append a chunk that was returned by `checked`, and return the log end offset. Raises the errors of
        `append_as_follower`.
        """
        partition, batches = self._partition, chunk.batches
        with os_errors(), partition.token:
            self._check_follows(batches)
            before = self._epochs.entries
            if int(batches["leader_epoch"][-1]) != self._epochs.current:
                self._change_epochs(lambda: self._assign_epochs(batches), sync=False)
            try:
                partition.writer.write_as_follower(chunk)
            except BaseException:
                # The epochs of the failed append are dropped, because the next fetch may bring fewer batches,
                # or batches of other epochs.
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
        """Append the batches in `data`, and raise the high watermark; return the log end offset. Append
        nothing and return None if `data` has no batch, a partial or damaged batch, or a batch of another
        epoch than the latest, or if `data` begins below the log's end. Raises StorageError.
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
            # This fetch was small. The next fetch may be small, too, so C is allowed to append it.
            if len(batches) <= _FEW:
                partition.tail.open_replicated(partition.validator)
        partition.flushing.flush_if_due(end)
        return end

    def _append_short(self, tail: NativeTail, data: bytes | memoryview, high_watermark: int) -> int:
        """Append the batches in `data`, and raise the high watermark, by one call of C. Return the log end
        offset, or SLOW if nothing was appended. Raises StorageError.
        """
        on_append, flush_left = tail.on_append, tail.flush_left
        now = lib.SEG_NOW if tail.clock is None else tail.clock()
        if self._headers is None:
            self._headers = ffi.new("seg_batch[]", _FEW)
        end: int = lib.seg_tail_follow(
            tail.c, ffi.from_buffer("uint8_t[]", data), len(data), high_watermark, self._headers, _FEW, now
        )
        if end < 0:
            return end if end == SLOW else undone(self._partition.tail, end, len(data))
        if on_append is not None:
            on_append(end)
        elif flush_left is not None and end - tail.commit.synced >= tail.c.flush_messages:
            flush_left(end)
        return end

    def go_on_at(self, offset: int, epoch: int) -> None:
        """Continue the log at `offset`, which is above the log's end, in a new segment, because the leader
        has no batch between the log's end and `offset` (R41). The leader epoch `epoch` begins at `offset`,
        unless `epoch` is -1. The new segment is not synced, so a power cut may remove it. Raises
        StorageError.
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
        """Set the epochs back to `before` after a failed change, also in the file of epochs if the file can
        be written.
        """
        if self._epochs.entries != before:
            self._go_back_to(before)
            with suppress(OSError):
                self._epochs.save(sync=False)

    def _is_latest(self, epochs: NDArray[np.int32]) -> bool:
        """Return whether all these leader epochs are equal to the latest epoch."""
        latest = self._epochs.current
        # Usually there is one epoch. It is compared without numpy, because numpy would be slower.
        return epochs.item(0) == latest and (len(epochs) == 1 or bool((epochs == latest).all()))

    def _check_follows(self, batches: NDArray[np.void]) -> None:
        end, latest = self._partition.segments.next_offset, self._epochs.current
        first, epochs = batches["base_offset"].item(0), batches["leader_epoch"]
        if first < end:
            raise InvalidArgumentError(f"offset {first} does not follow the log, which ends at {end}")
        if (epochs == latest).all():
            return
        epochs = epochs[epochs >= 0]  # converted messages of magic 0 and 1 have no epoch
        if len(epochs) and (int(epochs[0]) < latest or (np.diff(epochs) < 0).any()):
            raise InvalidArgumentError(
                f"leader epochs {epochs.tolist()} fall, or lie below the latest, {latest}"
            )

    def _assign_epochs(self, batches: NDArray[np.void]) -> None:
        """Add the leader epochs that begin within `batches` to the log's epochs."""
        latest = self._epochs.current
        epochs, first = np.unique(batches["leader_epoch"], return_index=True)
        for epoch, base in zip(epochs.tolist(), batches["base_offset"][first].tolist(), strict=True):
            if epoch > latest:
                self._epochs.assign(epoch, base)

    def _change_epochs(self, change: Callable[[], object], *, sync: bool) -> None:
        """Change the leader epochs by `change`, and write their file, before a batch is written under a new
        epoch. Then publish the log under the latest epoch. If not `sync`, the next flush makes the file
        durable; if a power cut before that leaves an older file, the next open derives the epochs from the
        batches. The caller holds the append token. If this raises OSError, the epochs have not changed.
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
        """Write batches with the latest epoch, and publish that epoch with the log's ends, from now on."""
        self._partition.writer.epoch = self._epochs.current
        self._partition.visible.begin_epoch(self._epochs.current)

    def _go_back_to(self, before: Sequence[tuple[int, int]]) -> None:
        """Set the epochs in memory back to `before`, after an unfinished change. Until the next change the
        file may also have epochs of the unfinished change. An open drops such epochs.
        """
        self._epochs.truncate_from_end(0)
        for entry in before:
            self._epochs.assign(*entry)
        self._partition.writer.epoch = self._epochs.current
        self._partition.visible.publisher.begin_epoch(self._epochs.current)

    # --- truncation -----------------------------------------------------------------------

    def truncate_to(self, offset: int) -> Truncated:
        """Cut the log after its last whole batch below `offset`, and forget the leader epochs, producers and
        aborted transactions of the cut part (R5; UnifiedLog.truncateTo). Copies of the cut batches are kept
        in the quarantine. If `offset` is not below the log's end, nothing is cut, and only epochs without a
        batch, which begin at the end, are forgotten. If `offset` is below the first segment, the log begins
        anew at `offset` (`truncate_fully_and_start_at`).

        Raises StorageError; the partition is fenced then, unless nothing was changed.
        """
        partition = self._partition
        with os_errors(), partition.admin_lock, partition.rename_lock:
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
        """Remove the whole log, and begin it anew at `offset`, without epochs and producers (R6). No copies
        of the batches are kept, because the leader has deleted these batches, too. Raises the errors of
        `truncate_to`.
        """
        with os_errors(), self._partition.admin_lock, self._partition.rename_lock:
            return self._start_at(offset)

    def cut_damaged(self, offset: int) -> Truncated:
        """Cut the segment that holds `offset`, and all later segments, without reading their batches, which
        are damaged or missing. The log then ends after the last batch before that segment. If the first
        segment is cut, the log begins anew at its log start offset. Copies of files with whole batches are
        kept in the quarantine. The caller allows no append during this call. Raises the errors of
        `truncate_to`.
        """
        partition = self._partition
        with os_errors(), partition.admin_lock, partition.rename_lock:
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
        """Copy the whole log into the quarantine, before its topic is deleted; return the paths of the
        copies, which are durable. Raises StorageError.
        """
        partition = self._partition
        with os_errors(), partition.admin_lock, partition.rename_lock:
            return self._keep_all(self._ahead().segments)

    def _ahead(self) -> LogView:
        """Return a view of all written records, including those that C has appended."""
        with self._partition.token:
            return self._partition.visible.ahead()

    def _keep_all(self, segments: Sequence[Segment]) -> tuple[str, ...]:
        kept = []
        for segment in segments:
            with suppress(FileNotFoundError):  # a missing file has no batches to keep
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
        """Return the segment slot and byte position of the first batch that does not lie wholly below
        `offset`, and the offset after the preceding batch.
        """
        slot = view.slot(offset)
        segment = view.segments[slot]
        found = segment.locate(offset, segment.size)
        if found is None:  # `offset` belongs to no batch of this segment
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
        segments.cut_after(segment)
        files.sync_dir(partition.directory)
        # The index files of a sealed segment are replaced, not cut, because other processes may have mapped
        # them.
        segment.hold(segment.handle, index_files.begin_anew(segment))
        with files.open(segment.path, write=True) as handle:
            files.truncate(handle, position)
            files.sync(handle)
        partition.context.pool.forget(segment.path)
        # A new Segment is made, so that a compaction of the old, longer segment does not replace the new one.
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
        """Remove all segments, and begin the log in a new segment at `offset`."""
        partition = self._partition
        files = partition.context.files
        # The log start offset is moved first. If the new log start offset is above the end of the old log,
        # and a crash comes after this line, the next open begins the log anew at that offset, even if old
        # segments are left. If instead `offset` is below the first segment, the new segment is made before
        # the old segments are removed. After a crash the old segments then lie after a gap, and the next open
        # removes them.
        self._move_start(offset)
        # Producer files are removed before the segments: if a crash comes in between, segments without
        # producer files do no harm.
        partition.producers.forget_all(offset)
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
        """Set the log start offset, durably."""
        # The offset is set in memory first, because another thread may write a checkpoint now, and the
        # checkpoint must have the new offset.
        self._partition.visible.start_offset = offset
        self._start_moved(offset)

    def _change(self, end: int, change: Callable[[], None], high_watermark: int) -> None:
        """Change the log's files by `change`, which removes everything from offset `end` on, and show the log
        up to a high watermark. Readers stop seeing the removed part before the change begins. A recovery
        point above `end` is lowered to `end`, durably, also before the change begins, because otherwise the
        next open would report the removed bytes as lost.
        """
        partition = self._partition
        visible, flusher, segments = partition.visible, partition.flusher, partition.segments

        def changed() -> None:
            visible.set_high_watermark(min(visible.high_watermark, end))
            if flusher.recovery_point > end:
                # The recovery point is set in memory first, because another thread may write a checkpoint
                # now, and the checkpoint must have the new recovery point.
                flusher.set_recovery_point(end)
                self._recovery_point_moved(end)
                visible.publish()
            change()
            flusher.names_changed()
            segments.layout += 1
            partition.flushing.changed = True
            # This is done before syncs are allowed again, because a sync must not use the old view, whose
            # files are gone.
            visible.cut(high_watermark)

        self.recent.clear()
        try:
            flusher.without_syncs(changed)
        except BaseException as error:
            segments.fence(error)
            raise

    def _forget_epochs(self, end: int) -> None:
        self._change_epochs(lambda: self._epochs.truncate_from_end(end), sync=True)


def checked(data: bytes | memoryview, end_offset: int = INT64_MAX) -> Encoded | None:
    """Of the batches in fetched bytes, return the whole batches below `end_offset`, ready for a follower's
    append; None if there is no such batch. Raises CorruptRecordError.
    """
    batches, stop = scan(data, end_offset=end_offset)
    if stop.status not in (lib.SEG_END, lib.SEG_SHORT, lib.SEG_STOP):
        raise CorruptRecordError("what was fetched", stop.position, stop.last_offset + 1, BAD[stop.status])
    if not len(batches):
        return None
    if is_old(batches):
        data, batches = bring_up(data, batches, "what was fetched")
    return Encoded.of(data, batches)
