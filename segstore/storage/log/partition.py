"""One partition as its writer holds it: its parts put together, log start and retention, and flushing.

On disk are files in the partition's directory, which the parts write. Threads: any. The append token
(`token`) is held where the log's end or its segments change, `admin` where the log start offset does,
`naming` where files are renamed or the directory is; they are taken in the order admin, naming, token. No
sync is done with the token held, but for `sync_ahead`.
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
    """What retention removed: a number of segments, and the bytes of their logs."""

    segments: int
    bytes: int


class LogStart:
    """Moves the log start offset up, and removes the segments below it: by request, and by retention.

    On disk the new start is durable before a byte is removed; then the segments below are `.deleted` for
    file.delete.delay.ms, their producer snapshots are removed, and the leader epochs begin with the log.
    Threads: any, one at a time (`admin` of the partition); the append token is held only to replace the view.
    `start_moved` makes a new log start offset durable.
    """

    def __init__(
        self, partition: Partition, epochs: LeaderEpochs, start_moved: Callable[[int], None]
    ) -> None:
        self._partition, self._epochs, self._start_moved = partition, epochs, start_moved

    def delete_records(self, before: int) -> int:
        """Move the log start offset up to `before` (-1: the high watermark), and remove the segments that lie
        wholly below; returns the new log start offset.

        The start is durable before a byte is removed. Raises OffsetOutOfRangeError.
        """
        partition = self._partition
        with partition.context.reserve, partition.admin:
            view = partition.view
            before = view.end_offset if before == -1 else before
            view.check(max(before, view.start_offset) if before >= 0 else before, partition.directory)
            if before > view.start_offset:
                self._advance(before, delay_ms=0)
            else:
                partition.show_rest()
            return max(before, view.start_offset)

    def retain(self, now_ms: int) -> Retained:
        """Remove the segments that retention.bytes and retention.ms no longer keep, oldest first.

        Their files stay for file.delete.delay.ms as `.deleted`, unless the disk is full. Raises StorageError,
        OSError.
        """
        partition = self._partition
        with partition.admin:
            view, config = partition.view, partition.config
            count = retention.breached(view, config, now_ms, partition.context.files)
            if count == len(view.segments):
                count -= not self._rolled_from(view, count > 1)
            if not count:
                return Retained(0, 0)
            before = partition.segments[count].base_offset
            if config.retention_bytes >= 0:
                # The bytes that count in place of older ones must be durable before the older are removed.
                partition.flusher.flush(view.end_offset)
            full = partition.context.full.note is not None  # appends fail: nothing else waits for these bytes
            delay_ms = 0 if full else config.file_delete_delay_ms
            self._advance(max(before, view.start_offset), delay_ms)
            return Retained(count, retention.freed(view, count))

    def _rolled_from(self, view: LogView, others: bool) -> bool:
        """Do what `Partition.roll_from` does. Where the roll fails and there are `others`, these are removed
        without the active segment, which may be what makes room for the roll.
        """
        try:
            return self._partition.roll_from(view)
        except StorageError:
            if not others:
                raise
            return False

    def _advance(self, start: int, delay_ms: int) -> None:
        """Let the log begin at `start`, which is durable before a byte is removed."""
        partition = self._partition
        partition.flusher.flush(start)
        self._start_moved(start)
        with partition.token:
            dropped = partition.visible.begin_at(start)
        self._remove(dropped, delay_ms)
        # Last: this frees nothing, and the next open puts right what a crash leaves undone here.
        # Without `naming` the directory may be that of a new topic with the same name.
        with partition.naming, suppress(OSError):
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


class Partition:
    """The writing side of one partition. `publisher` tells other processes what is visible; `start_moved`
    makes a new log start offset durable.
    """

    def __init__(
        self,
        context: StoreContext,
        config: TopicConfig,
        opened: Opened,
        epochs: LeaderEpochs,
        producers: Producers,
        publisher: Publisher,
        start_moved: Callable[[int], None],
        layout: int = 0,
        high_watermark: int | None = None,
    ) -> None:
        """With a `high_watermark` this is a replica, which takes no application's appends before it leads."""
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
        self.admin, self.naming = Mutex(), Mutex()
        self.validator = LogValidator(config)
        self.acks: Acknowledger | None = None
        """The other replicas, which an application's append waits for; None without any."""
        self.unsettled: str | None = None
        """Why a compaction's swap was left half done: reopening finishes it, and no other runs before."""
        self.visible.publish()

    @property
    def view(self) -> LogView:
        """Return the view that readers may see now. Raises StoreClosedError where the topic was deleted."""
        return self.visible.view

    @property
    def recovery_point(self) -> int:
        """Return the recovery point: all below this offset is durable."""
        return self.flusher.recovery_point

    @property
    def recovery_begin(self) -> int:
        """Return the offset from which a recovery is to look at the log behind a crash of the machine: the
        recovery point, but no offset behind a segment to which a process may write still, though it is
        sealed: what lies behind its end is to be cut then [A5].
        """
        share = self.tail.native.c.share
        sealed = share.log.sealed if share else ()
        return min([self.recovery_point, *(int(each.base_offset) for each in sealed if each.owner)])

    def _flushed(self, _: int) -> None:
        self.visible.publish()

    def show(self) -> None:
        """Make visible what was written, or have the scheduler do so, if a signal handler can't; the caller
        holds the token.
        """
        try:
            self.visible.show()
        except ReentrantCallError:  # the lock's holder waits for a call that this handler interrupted
            self.context.scheduler.soon(self._show)

    def _show(self) -> None:
        with self.token:
            self.show()

    def show_rest(self) -> None:
        """Make visible what an interrupt kept from becoming visible, here or to other processes: the end, or
        the start.
        """
        with self.token:
            self._show_rest()

    def _show_rest(self) -> None:
        if not self.visible.is_all:
            self.visible.show()

    def flush(self) -> None:
        """Make all that is visible durable. Raises StorageError."""
        self.flushing.flush()

    # --- the log's end --------------------------------------------------------------------

    def sync_ahead(self) -> None:
        """Make durable what was written and is not visible yet; the caller holds the token. Raises
        StorageError, and the partition is fenced then.
        """
        self.flusher.sync_ahead(self.visible.ahead())

    def put(self, chunks: Iterable[Encoded], claim: ProducerAppendInfo | ExpectedEnd | None = None) -> int:
        """Write encoded batches that C has left, with contiguous offsets, visible together; return the first
        offset. With a `claim` Kafka's rules for a producer with an id are applied first, or the log's end is
        compared with the offset that is expected.

        Encoding and compression are done before the token is taken (of a long append for its first bytes
        only), fsync after it is let go of. Raises StorageError, OffsetMismatchError, and the errors of
        `append_info.judge`; nothing is written then. After an interrupt the log has all of the append,
        visible, or nothing.
        """
        self._check_apart()
        with self.token:
            try:
                return self.writer.write(chunks, claim)
            finally:
                self.show()
                self.tail.open(self.validator)

    def _check_apart(self) -> None:
        """Raise ReentrantCallError, before anything is written, if a signal handler appends within a call
        that would keep the record from becoming visible or durable.
        """
        visible = self.visible
        needed = visible.publishing, visible.flusher.lock, visible.publisher.lock
        # If no call is under way, an interrupt has left the lock taken (`Mutex.__enter__`).
        if holds_any(of=needed) and (outer := under_way()) is not None:
            raise refused(outer)
        if self.writer.config.flush_messages != NEVER:
            check_apart("append()")

    def make_ready(self, header: Any, batches: int, generation: int, waited_for: int) -> None:
        """Let other processes append, of which one has asked for room, as `LogWriter.make_ready`, in this
        generation of the log; nothing is done if the log is open in a later one. `waited_for` is the word of
        a lock that is to be taken from its living owner, or 0. Raises what `make_ready` raises.
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
        """Note that a segment with this base offset follows `count` ones that were sealed; the caller holds
        the append token, and has these flushed.
        """
        self.segments.layout += 1
        self.producers.snapshot(base_offset)
        if len(self.segments) <= count:  # the only one, which was empty, gave its name to other files
            self.flusher.names_changed()
            return
        for slot in range(-count, 0):
            self.flusher.rolled(self.segments[slot - 1], self.segments[slot].base_offset)

    def written_still(self) -> set[int]:
        """Return the base offsets of sealed segments to which another process may write still: a stopped one,
        whose lock was taken away [A5].
        """
        share = self.tail.native.c.share
        sealed = share.log.sealed if share else ()
        return {int(each.base_offset) for each in sealed if each.owner and not each.is_replaced}

    def roll_from(self, view: LogView) -> bool:
        """Roll, so that all that `view` shows lies in sealed segments; False where more was appended
        meanwhile.
        """
        with self.token:
            if self.segments.closed or self.segments.next_offset != view.end_offset:
                return False
            self.writer.roll_apart()
            self.visible.show()
        return True

    def roll_if_old(self, now_ms: int) -> None:
        """Roll an active segment that was begun more than segment.ms ago, so that retention and compaction
        may reach its records. Raises StorageError.
        """
        with self.token:
            self.writer.recall()
            segments = self.segments
            if not segments.closed and segments.fenced is None and segments.active.outlived(now_ms):
                self.writer.roll_apart()
                self.visible.show()

    def roll(self) -> None:
        """Seal the active segment, so that its records may be written anew. Raises StorageError."""
        with self.token:
            self.writer.recall()
            if not self.segments.closed and self.segments.fenced is None:
                self.writer.roll_apart()
                self.visible.show()

    # --- compaction -----------------------------------------------------------------------

    @contextmanager
    def names_held(self) -> Iterator[None]:
        """Run a block in which no segment is removed and the topic not deleted. Raises StoreClosedError where
        the topic was deleted before.
        """
        with self.admin, self.naming:
            _ = self.view
            yield

    def last_records(self) -> dict[int, tuple[int, int]]:
        """See `Producers.last_records`."""
        with self.token:
            self.writer.recall()
            return self.producers.last_records()

    def replace(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Let readers of this process see the segments `new` in place of `old`, which are part of the log;
        the caller is within `names_held`.
        """
        with self.token:
            self.visible.replace(old, new)

    def relist(self, gone: Iterable[int]) -> None:
        """Have other processes list the segments again: files of segments were replaced, and the segments
        with base offsets `gone` exist no more. Raises OSError.
        """
        for base in gone:
            self.producers.forget_snapshot(base)
        with self.token:
            self.segments.layout += 1
            self.visible.show()

    # --- settings, closing ----------------------------------------------------------------

    def expire_producers(self, after_ms: int) -> int:
        """Forget the producers that wrote nothing for `after_ms`; returns how many."""
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
        """Make the log durable, and leave the directory as Kafka's clean shutdown does.

        Raises StorageError.
        """
        with self.token:
            self._show_rest()
            self.segments.closed = True
        if self.writer.is_whole():
            with self.token:
                self.writer.begin_epoch()
            self.flush()
            self.epochs.sync()  # a flush that has no records to sync leaves an epoch without records
            self.visible.publish()  # a sync of C's that just ended may have told nobody
            self.segments.active.trim()
            if self.flushing.changed:  # all of it is synced: the next open takes it for durable
                index_files.sync(self.segments.active.segment)
                self._snapshot()
        elif self.flushing.untold is not None:
            raise copy_of(self.flushing.untold)

    def leave_sealed(self) -> None:
        """Go on behind a segment that was sealed: see `LogWriter.leave_sealed`."""
        with self.token:
            self.writer.leave_sealed(self.tail.native)
            self.show()

    def leave_open(self) -> None:
        """Make the log durable, and leave it open for other processes, since this one is host no more. Raises
        StorageError.
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
        """Write a producer snapshot at the end; without room for it the next open replays the log from an
        older one.
        """
        try:
            with Sparing():
                self.producers.snapshot(self.visible.log_end_offset, sync=True)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise

    def is_clean(self) -> bool:
        """Return whether the next open has nothing to finish or to take back."""
        return self.unsettled is None and self.writer.is_whole()

    def abandon(self) -> None:
        """Refuse appends, since the topic was deleted; readers keep the views that they have."""
        with self.naming, self.token:
            self.segments.closed = True
            self.visible.withdraw()
