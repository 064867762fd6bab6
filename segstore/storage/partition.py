"""The writing side of one partition: its parts put together, and the one place where a view is replaced.

On disk: through its parts, all in the partition's directory.
Threads: any. `view` is replaced with the append token held, after the bytes are written; then the end is
published to other processes. No sync is done with the token held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from segstore.config import TopicConfig
from segstore.errors import StorageError, StoreClosedError
from segstore.records import Encoded
from segstore.storage import retention
from segstore.storage.checkpoint import LeaderEpochs
from segstore.storage.flusher import Flusher
from segstore.storage.judging import Claim
from segstore.storage.pending import AppendQueue, Pending
from segstore.storage.publisher import Publisher
from segstore.storage.view import LogView, Together, Turning
from segstore.storage.writer import LogWriter, bury_segment

if TYPE_CHECKING:
    from segstore.storage.context import Context
    from segstore.storage.opening import Opened
    from segstore.storage.producers import Producers
    from segstore.storage.segment import Segment

# A long append is encoded up to here before it takes its place in the queue; what is longer keeps
# the queue waiting while it is encoded, since its records must lie together whatever their number.
AHEAD_PLAIN = 4 << 20
AHEAD_COMPRESSED = 64 << 20
NEVER = 2**63 - 1  # Kafka's default for flush.ms


class Retained(NamedTuple):
    """What retention let go: segments, and bytes of their logs."""

    segments: int
    bytes: int


class Partition:
    """`publisher` tells other processes; `start_moved` makes a new log start offset durable."""

    def __init__(
        self,
        context: Context,
        config: TopicConfig,
        opened: Opened,
        epochs: LeaderEpochs,
        producers: Producers,
        publisher: Publisher,
        start_moved: Callable[[int], None],
        layout: int = 0,
    ) -> None:
        self.context, self.config, self.producers = context, config, producers
        self.directory = opened.segments[0].directory
        self.layout = layout
        self._epochs = epochs
        self.publisher, self._start_moved = publisher, start_moved
        self._start = opened.start_offset
        self._segments = opened.segments
        self.writer = LogWriter(
            context.pool,
            self.directory,
            config,
            self._segments,
            opened.end_offset,
            epochs.current,
            context.clock,
            self._rolled,
            producers,
        )
        self._queue = AppendQueue(self._write_all)
        # A view and what is published of it change together, whoever does it.
        self._publishing = threading.Lock()
        self._frozen: tuple[tuple[Segment, ...], tuple[int, ...]] = ((), ())
        self._freeze()
        self._view: LogView | Turning | None = self._look()
        self.flusher = Flusher(self.writer, lambda: self.view, opened.durable_offset, self._flushed)
        self._admin = threading.Lock()
        self._naming = threading.Lock()  # files get other names, or the directory does
        self.unsettled: str | None = None
        """Why a compaction's swap was left half done: reopening finishes it, until then there is none."""
        self._flush_planned = False
        self._untold: StorageError | None = None  # a sync failed in the background: `close` tells
        self.changed = opened.recovered is not None
        self.publisher.publish(self)

    @property
    def view(self) -> LogView:
        """What may be seen now; StoreClosedError where the topic was deleted."""
        view = self._view
        if isinstance(view, LogView):
            return view
        if view is None:
            raise StoreClosedError(f"{self.directory}: the topic was deleted")
        return view.view

    @property
    def shown(self) -> bool:
        """Whether all that was written is visible; with the append token held."""
        view = self._view
        if view is None:
            return True
        return isinstance(view, LogView) and view.end_offset == self.writer.next_offset

    @property
    def recovery_point(self) -> int:
        """Up to this offset all is durable."""
        return self.flusher.recovery_point

    # --- views ---------------------------------------------------------------------------

    def _freeze(self) -> None:
        self._frozen = tuple(self._segments), tuple(s.base_offset for s in self._segments)

    def _look(self) -> LogView:
        end = self.writer.next_offset
        segments, bases = self._frozen
        stable = self.producers.stable_offset(self._start, end)
        return LogView(segments, bases, self._start, end, segments[-1].size, stable)

    def _show(self) -> None:
        if self.writer.closed:  # or deleted: its slot in the published ends may be another's
            return
        self._freeze_anew()
        with self._publishing:
            self._view = self._look()
            self.publisher.publish(self)

    def _freeze_anew(self) -> None:
        if len(self._frozen[0]) != len(self._segments) or self._frozen[0][-1] is not self._segments[-1]:
            self._freeze()

    @staticmethod
    def show_all(partitions: Sequence[Partition]) -> None:
        """Show what was written to partitions of one store, all of it at once, in this process and to others.

        Their append tokens are held, and the partitions always given in one order.
        """
        together = Together()
        with ExitStack() as held:
            for it in partitions:
                it._freeze_anew()
                held.enter_context(it._publishing)
            after = [it._look() for it in partitions]
            for it, view in zip(partitions, after, strict=True):
                it._view = Turning(it.view, view, together)
            together.done = True
            Publisher.publish_all(partitions)
            for it, view in zip(partitions, after, strict=True):
                it._view = view

    def _rolled(self, base_offset: int) -> None:
        self.layout += 1
        self.producers.snapshot(base_offset)
        self.flusher.rolled(self._segments[-2], base_offset)
        self.context.scheduler.soon(self._flush_quietly)

    def _flush_quietly(self) -> None:
        if not self.context.closed and self._view is not None:
            try:
                self.flush()
            except StoreClosedError:
                pass  # the topic was deleted meanwhile
            except StorageError as error:
                if error.errno is not None:  # a fence of before was told
                    self._untold = error
                raise

    def _flushed(self, _: int) -> None:
        with self._publishing:
            if self._view is not None:
                self.publisher.publish(self)

    @property
    def sync_failed(self) -> bool:
        """Whether a sync has failed: what the kernel holds of the log may not be on disk."""
        return self.flusher.failed

    # --- appending -----------------------------------------------------------------------

    def _write_all(self, pendings: list[Pending]) -> None:
        try:
            self.writer.write_all(pendings)
        finally:
            self._show()

    def append_claimed(self, chunks: list[Encoded], claim: Claim) -> int:
        """As `append`, judged by Kafka's rules for a producer with an id. The errors of `judging`."""
        return self._queue.put(chunks, claim)

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Holds the append token, with nothing left in the queue before."""
        with self._queue.token:
            self._queue.drain()
            yield

    def sync_ahead(self) -> None:
        """Make durable what was written and is not shown, with the token held. StorageError: fenced."""
        self._freeze_anew()
        self.flusher.sync_ahead(self._look())

    def adopted(self, end: int) -> None:
        """What was written up to `end` is durable, and about to be shown."""
        self.flusher.recovery_point = end
        self.changed = True

    def append(self, chunks: Iterator[Encoded], ahead: int) -> int:
        """Append encoded batches, contiguous, visible together: the first offset. StorageError: nothing is
        there.
        """
        ready: list[Encoded] = []
        size = 0
        for chunk in chunks:
            ready.append(chunk)
            size += chunk.size
            if size > ahead:
                return self._append_long(chain(ready, chunks))
        return self._queue.put(ready)

    def _append_long(self, chunks: Iterable[Encoded]) -> int:
        with self._queue.token:
            self._queue.drain()
            try:
                return self.writer.write(chunks)
            finally:
                self._show()

    def settle(self, after: int) -> None:
        """Keep `flush.messages` and `flush.ms` for what ends at offset `after`. StorageError."""
        config = self.config
        if after - self.flusher.recovery_point >= config.flush_messages:
            self.flusher.flush(after)
        elif not self._flush_planned and config.flush_ms < NEVER:
            self._flush_planned = True
            self.context.scheduler.after(config.flush_ms / 1000, self._flush_as_planned)
        self.changed = True

    def _flush_as_planned(self) -> None:
        self._flush_planned = False
        self._flush_quietly()

    def flush(self) -> None:
        """Make all that is visible durable. StorageError."""
        self.flusher.flush(self.view.end_offset)

    # --- administration ----------------------------------------------------------------------

    def delete_records(self, before: int) -> int:
        """Move the log start offset up to `before` (-1: the high watermark); whole segments below go. The
        new start.

        The start is durable before a byte goes. OffsetOutOfRangeError.
        """
        with self._admin:
            view = self.view
            before = view.end_offset if before == -1 else before
            view.check(max(before, view.start_offset) if before >= 0 else before, self.directory)
            if before > view.start_offset:
                self._advance(before, delay_ms=0)
            return max(before, view.start_offset)

    def retain(self, now_ms: int) -> Retained:
        """Let the segments go that retention.bytes and retention.ms no longer keep, oldest first.

        Their files stay for file.delete.delay.ms as `.deleted`. StorageError, OSError.
        """
        with self._admin:
            view = self.view
            count = retention.breached(view, self.config, now_ms, self.context.files)
            if count == len(view.segments):
                count -= not self._rolled_from(view, count > 1)
            if not count:
                return Retained(0, 0)
            before = self._segments[count].base_offset
            self._advance(max(before, view.start_offset), self.config.file_delete_delay_ms)
            return Retained(count, retention.freed(view, count))

    def _rolled_from(self, view: LogView, others: bool) -> bool:
        """As `roll_from`. Where that fails, `others` go without it, which may be what makes room for it."""
        try:
            return self.roll_from(view)
        except StorageError:
            if not others:
                raise
            return False

    def roll_from(self, view: LogView) -> bool:
        """Roll, so that what `view` shows lies in sealed segments; False where more has come meanwhile."""
        with self._queue.token:
            self._queue.drain()
            if self.writer.closed or self.writer.next_offset != view.end_offset:
                return False
            self.writer.roll_apart()
            self._show()
        return True

    def roll_if_old(self, now_ms: int) -> None:
        """Roll a segment that was begun more than segment.ms ago, so that it may go in its time.
        StorageError.
        """
        with self._queue.token:
            if not self.writer.closed and self.writer.fenced is None and self.writer.active.outlived(now_ms):
                self.writer.roll_apart()
                self._show()

    def _advance(self, start: int, delay_ms: int) -> None:
        """Let the log begin at `start`: that is durable before a byte goes."""
        self.flusher.flush(start)
        self._start_moved(start)
        with self._queue.token:
            self._start = start
            dropped = self._drop_below(start)
            self._show()
        self._remove(dropped, delay_ms)
        # Last: it frees nothing, and what a crash leaves of it the next open puts right.
        with self._naming, suppress(OSError):  # without it, the directory may be a new topic's of that name
            if self._view is not None and self._epochs.truncate_from_start(start):
                self._epochs.save()

    def _drop_below(self, offset: int) -> list[Segment]:
        keep = next(
            (i for i, s in enumerate(self._segments[1:]) if s.base_offset > offset), len(self._segments) - 1
        )
        dropped = self._segments[:keep]
        if dropped:
            del self._segments[:keep]
            self.layout += 1
            self._freeze()
        return dropped

    def _remove(self, segments: list[Segment], delay_ms: int) -> None:
        """Oldest first, so that a crash leaves no gap within the log."""
        for segment in segments:
            self.context.graveyard.put(bury_segment(segment), delay_ms)
            self.producers.forget_snapshot(segment.base_offset)
        if segments:
            self.context.files.sync_dir(self.directory)

    # --- compaction ----------------------------------------------------------------------------

    @contextmanager
    def names_held(self) -> Iterator[None]:
        """No segment is removed, and the topic not deleted, meanwhile. StoreClosedError where it was."""
        with self._admin, self._naming:
            _ = self.view
            yield

    def last_records(self) -> dict[int, tuple[int, int]]:
        """See `Producers.last_records`."""
        with self._queue.token:
            return self.producers.last_records()

    def lies_in(self, segments: Sequence[Segment]) -> bool:
        """Whether these are still sealed segments of the log, side by side."""
        held = self._segments[:-1]
        at = held.index(segments[0]) if segments[0] in held else 0
        return held[at : at + len(segments)] == list(segments)

    def replace(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Let readers of this process see `new` in place of `old`, which lie in the log; with names held."""
        with self._queue.token:
            at = self._segments.index(old[0])
            self._segments[at : at + len(old)] = new
            self._freeze()
            self._show()

    def relist(self, gone: Iterable[int]) -> None:
        """Files of segments were replaced, and those at the bases `gone` are no more: other processes look
        again. OSError.
        """
        for base in gone:
            self.producers.forget_snapshot(base)
        with self._queue.token:
            self.layout += 1
            self._show()

    # --- settings, closing -----------------------------------------------------------------------

    def expire_producers(self, after_ms: int) -> int:
        """Forget producers that wrote nothing for so long: how many."""
        with self._queue.token:
            return self.producers.expire(after_ms)

    def configure(self, config: TopicConfig) -> None:
        """Use changed settings from the next append on."""
        with self._queue.token:
            self.config = self.writer.config = self.writer.active.config = config

    def close(self) -> None:
        """Write what is queued, make it durable, leave the directory as Kafka's clean shutdown does.
        StorageError.
        """
        with self._queue.token:
            self._queue.drain()
            self.writer.closed = True
        if self.writer.settled():
            self.flush()
            self.writer.active.trim()
            if self.changed:
                self.producers.snapshot(self.view.end_offset)
        elif self._untold is not None:
            raise self._untold

    def settled(self) -> bool:
        """Whether the next open has nothing to finish or to take back."""
        return self.unsettled is None and self.writer.settled()

    def abandon(self) -> None:
        """The topic was deleted: appends are refused, readers keep what they have."""
        with self._naming, self._queue.token:
            self._queue.drain()
            self.writer.closed = True
            with self._publishing:
                self._view = None
