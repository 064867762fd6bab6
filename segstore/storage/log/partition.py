"""One partition in its writer's process: `Partition` joins the objects that do its work, and `LogStart` moves
the partition's log start offset, on request or for retention.

On disk are files in the partition's directory, which these objects write. Threads: any. Three locks order the
changes: `admin_lock` for the log start offset, `rename_lock` for renames of files or of the directory, and
the append token (`token`) for the log's end and its segments. A thread takes the locks in this order. No sync
is done with the token held, except in `sync_ahead`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from segstore._native import lib
from segstore.config import TopicConfig
from segstore.errors import ReentrantCallError, StorageError, copy_of
from segstore.files.reserve import NO_ROOM, Sparing
from segstore.mutex import Mutex, check_apart, holds_any, refused, under_way
from segstore.storage.context import StoreContext, wall_clock
from segstore.storage.log import retention
from segstore.storage.log.acks import Acknowledger
from segstore.storage.log.flusher import Flusher
from segstore.storage.log.flushing import NEVER, FlushPolicy
from segstore.storage.log.log_segments import LogSegments
from segstore.storage.log.publisher import Publisher
from segstore.storage.log.tail import Tail
from segstore.storage.log.validator import LogValidator
from segstore.storage.log.visibility import Visible
from segstore.storage.log.writer import LogWriter
from segstore.storage.meta.offset_checkpoints import LeaderEpochs
from segstore.storage.segment import index_files
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.native_tail import NativeTail
from segstore.storage.segment.segment_files import bury_segment

if TYPE_CHECKING:
    from segstore.records import Encoded
    from segstore.storage.log.open import Opened
    from segstore.storage.producers.append_info import ExpectedEnd, ProducerAppendInfo
    from segstore.storage.producers.state_manager import Producers
    from segstore.storage.segment.segment import Segment


# --- log start ---------------------------------------------------------------------------------


class Retained(NamedTuple):
    """The number of segments that retention removed, and the bytes of their logs."""

    segments: int
    bytes: int


class LogStart:
    """Moves the log start offset up, and removes the segments below it, on request or by retention.

    On disk the new start is durable before a byte is removed. Then the files of the segments below the start
    get names that end in `.deleted`, and stay for file.delete.delay.ms. The producer snapshots of these
    segments are removed, and older leader epochs are dropped. `start_moved` makes a new log start offset
    durable. Threads: any, one at a time (`admin_lock` of the partition); the append token is held only to
    replace the view.
    """

    def __init__(
        self, partition: Partition, epochs: LeaderEpochs, start_moved: Callable[[int], None]
    ) -> None:
        self._partition, self._epochs, self._start_moved = partition, epochs, start_moved

    def delete_records(self, before: int) -> int:
        """Move the log start offset up to `before` (-1: the high watermark), and remove the segments wholly
        below it. Return the new log start offset. Raises OffsetOutOfRangeError.
        """
        partition = self._partition
        with partition.context.reserve, partition.admin_lock:
            view = partition.view
            before = view.end_offset if before == -1 else before
            view.check(max(before, view.start_offset) if before >= 0 else before, partition.directory)
            if before > view.start_offset:
                self._advance(before, delay_ms=0)
            else:
                partition.show_rest()
            return max(before, view.start_offset)

    def retain(self, now_ms: int) -> Retained:
        """Remove the segments that retention.bytes and retention.ms no longer keep, oldest first. Return
        their number and bytes. Raises StorageError, OSError.

        On a full disk the files are removed at once. If the disk is not full, the files stay for
        file.delete.delay.ms, with names that end in `.deleted`.
        """
        partition = self._partition
        with partition.admin_lock:
            view, config = partition.view, partition.config
            count = retention.breached(view, config, now_ms, partition.context.files)
            if count == len(view.segments):
                count -= not self._rolled_from(view, count > 1)
            if not count:
                return Retained(0, 0)
            before = partition.segments[count].base_offset
            if config.retention_bytes >= 0:
                # If older segments are removed because newer bytes fill retention.bytes, the newer bytes must
                # be durable first.
                partition.flusher.flush(view.end_offset)
            full = partition.context.full.note is not None  # `full`: appends fail for lack of room
            delay_ms = 0 if full else config.file_delete_delay_ms
            self._advance(max(before, view.start_offset), delay_ms)
            return Retained(count, retention.freed(view, count))

    def _rolled_from(self, view: LogView, others: bool) -> bool:
        """Roll by `Partition.roll_from`, and return its result. If the roll fails, raise its StorageError;
        but if there are older segments (`others`), return False, because their removal may make room for a
        later roll.
        """
        try:
            return self._partition.roll_from(view)
        except StorageError:
            if not others:
                raise
            return False

    def _advance(self, start: int, delay_ms: int) -> None:
        """Make the new log start offset durable, then set it, and then remove the segments below it."""
        partition = self._partition
        partition.flusher.flush(start)
        self._start_moved(start)
        with partition.token:
            dropped = partition.visible.begin_at(start)
        self._remove(dropped, delay_ms)
        # The epochs are dropped last, because dropping them frees no room. If a crash comes before, the next
        # open drops the epochs. `rename_lock` and the check of `current` ensure that the directory does not
        # belong to a new topic with the same name.
        with partition.rename_lock, suppress(OSError):
            if partition.visible.current is not None and self._epochs.truncate_from_start(start):
                self._epochs.save()

    def _remove(self, segments: list[Segment], delay_ms: int) -> None:
        """Remove segments, the oldest first, so that a crash leaves no gap within the log."""
        partition = self._partition
        for segment in segments:
            partition.context.graveyard.put(bury_segment(segment, partition.context.clock()), delay_ms)
            partition.producers.forget_snapshot(segment.base_offset)
        if segments:
            partition.context.files.sync_dir(partition.directory)


# --- partition ------------------------------------------------------------


class Writable(Protocol):
    """A log whose partition this process writes."""

    def partition_for_write(self) -> Partition:
        """Return the partition. Raises ReadOnlyError, StoreClosedError, ForkedError."""


class LogState(NamedTuple):
    """The state of a log after it was opened. `layout` counts the changes of the segment list; other
    processes compare the number to notice a change. If `high_watermark` is not None, the log is a replica's.
    """

    opened: Opened
    epochs: LeaderEpochs
    producers: Producers
    layout: int = 0
    high_watermark: int | None = None


class Partition:
    """Writes one partition. `publisher` publishes the partition's ends to other processes; `start_moved`
    makes a new log start offset durable.
    """

    def __init__(
        self,
        context: StoreContext,
        config: TopicConfig,
        state: LogState,
        publisher: Publisher,
        start_moved: Callable[[int], None],
    ) -> None:
        """A replica refuses applications' appends until it becomes the leader."""
        opened, epochs, producers, layout, high_watermark = state
        self.context, self.config, self.producers = context, config, producers
        self.directory = opened.segments[0].directory
        self.segments = LogSegments(self.directory, opened.segments, config, opened.end_offset, layout)
        self.writer = LogWriter(
            context.pool, config, self.segments, epochs.current, context.clock, self._rolled, producers
        )
        clock = None if context.clock is wall_clock else context.clock
        native = NativeTail(clock, context.here_for_c, opened.durable_offset)
        self.flusher = Flusher(
            context.pool, self.segments, native, lambda: self.visible.written, self._flushed, epochs.sync
        )
        self.writer.follows = high_watermark is not None
        self.writer.no_room = context.full.met
        kind = Visible
        if publisher.share is not None:
            from segstore.storage.log.shared_visibility import SharedVisible

            kind = SharedVisible
            native.share(publisher.share, publisher)
            native.synced = opened.durable_offset
            self.flusher.names_changed()
        self.visible = kind(self.writer, self.flusher, publisher, native, opened.start_offset, high_watermark)
        changed = opened.recovered is not None
        self.flushing = FlushPolicy(context, self.writer, self.flusher, self.visible, changed)
        self.tail = Tail(context, native, self.writer, self.visible, self.flushing)
        self.token = self.tail.token
        self.epochs = epochs
        self.log_start = LogStart(self, epochs, start_moved)
        self.admin_lock, self.rename_lock = Mutex(), Mutex()
        self.validator = LogValidator(config)
        self.acks: Acknowledger | None = None
        """Makes an application's append wait for the other replicas; None if the partition has no other
        replica.
        """
        self.unsettled: str | None = None
        """The error that has left a compaction's swap of segments half done, else None. The next open
        finishes or undoes the swap; until then no compaction runs.
        """
        self.visible.publish()

    @property
    def view(self) -> LogView:
        """Return the view that readers may see now. Raises StoreClosedError if the topic was deleted."""
        return self.visible.view

    @property
    def recovery_point(self) -> int:
        """Return the recovery point, the offset below which all records are durable."""
        return self.flusher.recovery_point

    @property
    def recovery_begin(self) -> int:
        """Return the offset from which a recovery must check the log after a crash of the machine: the
        recovery point, or the base offset of an earlier sealed segment to which a process may still write.
        The recovery must cut the bytes beyond the end of that segment [A5].
        """
        share = self.tail.native.c.share
        sealed = share.log.sealed if share else ()
        return min([self.recovery_point, *(int(each.base_offset) for each in sealed if each.owner)])

    def _flushed(self, _: int) -> None:
        self.visible.publish()

    def show(self) -> None:
        """Make the written records visible. If this call runs in a signal handler that has interrupted the
        holder of the lock `publishing`, the scheduler makes the records visible later. The caller holds the
        append token.
        """
        try:
            self.visible.show()
        # This call runs in a signal handler that has interrupted the holder of `publishing`.
        except ReentrantCallError:
            self.context.scheduler.soon(self._show)

    def _show(self) -> None:
        with self.token:
            self.show()

    def show_rest(self) -> None:
        """If an interrupt has kept a log end or log start offset hidden, make it visible, in this process and
        to others.
        """
        with self.token:
            self._show_rest()

    def _show_rest(self) -> None:
        if not self.visible.is_all:
            self.visible.show()

    def flush(self) -> None:
        """Make all visible records durable. Raises StorageError."""
        self.flushing.flush()

    # --- the log's end --------------------------------------------------------------------

    def sync_ahead(self) -> None:
        """Make durable the written records that are not visible yet; the caller holds the append token. If
        the sync fails, fences the partition against appends, and raises StorageError.
        """
        self.flusher.sync_ahead(self.visible.ahead())

    def put(self, chunks: Iterable[Encoded], claim: ProducerAppendInfo | ExpectedEnd | None = None) -> int:
        """Write encoded batches on the slow path. Their records get contiguous offsets and become visible at
        the same moment. Return the first offset. If `claim` is a ProducerAppendInfo, Kafka's rules for the
        producer are applied first. If `claim` is an ExpectedEnd, its offset is first compared with the log's
        end.

        The records are encoded and compressed before the append token is taken (for a long append only its
        first bytes), and the log is synced after the append token is released. Raises StorageError,
        OffsetMismatchError, and the errors of `append_info.judge`; nothing is written then. After an
        interrupt the log has either all of these records, and all are visible, or none.
        """
        self._check_apart()
        with self.token:
            try:
                return self.writer.write(chunks, claim)
            finally:
                self.show()
                self.tail.open(self.validator)

    def _check_apart(self) -> None:
        """Raise ReentrantCallError, before anything is written, if this append runs in a signal handler and
        the interrupted call holds a lock without which the append can't become visible or durable.
        """
        visible = self.visible
        needed = visible.publishing, visible.flusher.lock, visible.publisher.lock
        # If a lock in `needed` is held while no call is under way, an interrupt has left it locked
        # (`Mutex.__enter__`).
        if holds_any(of=needed) and (outer := under_way()) is not None:
            raise refused(outer)
        if self.writer.config.flush_messages != NEVER:
            check_apart("append()")

    def make_ready(self, header: Any, batches: int, generation: int, waited_for: int) -> None:
        """Call `LogWriter.make_ready` to make room for another process's append. Then let other processes
        append. `generation` is the generation of the log that the other process knows. If the log is open
        under a different generation, nothing is done.

        If the value of the log's lock is `waited_for`, the lock is taken away from the process that holds it,
        although that process is alive. If `waited_for` is 0, no lock is taken away. If `waited_for` is not 0,
        the generation is not compared. Raises the errors of `LogWriter.make_ready`.
        """
        share = self.tail.native.c.share
        if share.log.open and share.generation != generation and not waited_for:
            return
        share.waited_for = waited_for
        with self.token:
            try:
                self.writer.make_ready(header, batches)
            finally:
                self.show()
                self.flushing.changed = True
                self.tail.open(self.validator)

    def _rolled(self, base_offset: int) -> None:
        self.sealed(base_offset)
        self.flushing.soon(base_offset)

    def sealed(self, base_offset: int, count: int = 1) -> None:
        """Record that `count` segments were sealed, and that a segment with this base offset follows them.
        Write a producer snapshot at that offset, and make the next flush sync the sealed segments. The caller
        holds the append token.
        """
        self.segments.layout += 1
        self.producers.snapshot(base_offset)
        # The log's only segment was empty, and the new segment's files have replaced the files of that
        # segment under the same names.
        if len(self.segments) <= count:
            self.flusher.names_changed()
            return
        for slot in range(-count, 0):
            self.flusher.rolled(self.segments[slot - 1], self.segments[slot].base_offset)

    def written_still(self) -> set[int]:
        """Return the base offsets of sealed segments that another process may still write to, because that
        process was stopped and its lock was taken away [A5].
        """
        share = self.tail.native.c.share
        sealed = share.log.sealed if share else ()
        return {int(each.base_offset) for each in sealed if each.owner and not each.is_replaced}

    def roll_from(self, view: LogView) -> bool:
        """Roll, so that all records of `view` lie in sealed segments, and return True. Return False, without
        a roll, if records were appended after `view` was read.
        """
        with self.token:
            if self.segments.closed or self.segments.next_offset != view.end_offset:
                return False
            self.writer.roll_apart()
            self.visible.show()
        return True

    def roll_if_old(self, now_ms: int) -> None:
        """Roll if the active segment was begun more than segment.ms ago, so that retention and compaction may
        reach its records. Raises StorageError.
        """
        with self.token:
            self.writer.recall()
            segments = self.segments
            if not segments.closed and segments.fenced is None and segments.active.outlived(now_ms):
                self.writer.roll_apart()
                self.visible.show()

    def roll(self) -> None:
        """Seal the active segment, so that compaction may rewrite its records. Raises StorageError."""
        with self.token:
            self.writer.recall()
            if not self.segments.closed and self.segments.fenced is None:
                self.writer.roll_apart()
                self.visible.show()

    # --- compaction -----------------------------------------------------------------------

    @contextmanager
    def names_held(self) -> Iterator[None]:
        """Context manager: during the block no segment is removed and the topic is not deleted. Raises
        StoreClosedError if the topic is deleted already.
        """
        with self.admin_lock, self.rename_lock:
            _ = self.view
            yield

    def last_records(self) -> dict[int, tuple[int, int]]:
        """Return (last offset, epoch) of each producer, by producer id (`Producers.last_records`)."""
        with self.token:
            self.writer.recall()
            return self.producers.last_records()

    def replace(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Show readers of this process the segments `new` in place of the log's segments `old`. The caller is
        within `names_held`.
        """
        with self.token:
            self.visible.replace(old, new)

    def relist(self, gone: Iterable[int]) -> None:
        """Make other processes list the segments again, because files of segments were replaced. The segments
        with base offsets in `gone` no longer exist. Raises OSError.
        """
        for base in gone:
            self.producers.forget_snapshot(base)
        with self.token:
            self.segments.layout += 1
            self.visible.show()

    # --- settings, closing ----------------------------------------------------------------

    def expire_producers(self, after_ms: int) -> int:
        """Forget the producers that have not written for `after_ms` ms; return their number."""
        with self.token:
            self.writer.recall()
            return self.producers.expire(after_ms)

    def configure(self, config: TopicConfig) -> None:
        """Use changed settings from the next append on."""
        with self.token:
            self.writer.recall()
            self.config = self.writer.config = config
            self.validator = LogValidator(config)
            self.segments.active.configure(config)
            if self.tail.native.is_shared:
                self.tail.native.c.share.settings += 1

    def close(self) -> None:
        """Make the log durable, and write a producer snapshot at its end, as Kafka does at a clean shutdown.
        Raises StorageError.
        """
        with self.token:
            self._show_rest()
            self.segments.closed = True
        if self.writer.is_whole():
            with self.token:
                self.writer.begin_epoch()
            self.flush()
            self.epochs.sync()  # needed because `flush` does nothing if all records are synced
            self.visible.publish()  # C may not have published the recovery point of its last sync
            self.segments.active.trim()
            # The indexes are synced, because after a clean close the next open uses them without a check.
            if self.flushing.changed:
                index_files.sync(self.segments.active.segment)
                self._snapshot()
        elif self.flushing.failure is not None:
            raise copy_of(self.flushing.failure)

    def leave_sealed(self) -> None:
        """Continue in a new segment after the active segment was sealed (`LogWriter.leave_sealed`)."""
        with self.token:
            self.writer.leave_sealed(self.tail.native)
            self.show()

    def leave_open(self) -> None:
        """Make the log durable, and leave it open for other processes, because this process is no longer the
        host. Raises StorageError.
        """
        with self.token:
            self._show_rest()
        if self.writer.is_whole():
            with self.token:
                self.writer.begin_epoch()
            self.flush()
            self.epochs.sync()
            if self.flushing.changed:
                self._snapshot()
        with self.token:
            self.tail.open(self.validator)
            lib.seg_share_leave(self.tail.native.c)
            self.tail.may_be_open = False
            self.segments.closed = True

    def _snapshot(self) -> None:
        """Write a producer snapshot at the log's end. If the disk is full, the next open replays the log from
        an older snapshot.
        """
        try:
            with Sparing():
                self.producers.snapshot(self.visible.log_end_offset, sync=True)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise

    def is_clean(self) -> bool:
        """Return whether the next open has no compaction to finish and no append to undo."""
        return self.unsettled is None and self.writer.is_whole()

    def abandon(self) -> None:
        """Refuse appends, because the topic was deleted; readers keep their views."""
        with self.rename_lock, self.token:
            self.segments.closed = True
            self.visible.withdraw()
