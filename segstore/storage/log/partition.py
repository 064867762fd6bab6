"""The writing side of one partition: its parts put together, and what needs several of them.

On disk: through its parts, all in the partition's directory.
Threads: any. The append token (`queue`) is held where the log's end or its segments change, `admin` where its
start does, `naming` where files get other names or the directory does; in the order admin, naming, token. No
sync is done with the token held, but for `sync_ahead`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from segstore.config import TopicConfig
from segstore.errors import copy_of
from segstore.mutex import Mutex
from segstore.storage.log.append_queue import AppendQueue
from segstore.storage.log.flusher import Flusher
from segstore.storage.log.flushing import Flushing
from segstore.storage.log.log_start import LogStart
from segstore.storage.log.publisher import Publisher
from segstore.storage.log.visibility import Visible
from segstore.storage.log.writer import LogWriter
from segstore.storage.meta.offset_checkpoints import LeaderEpochs
from segstore.storage.segment.log_view import LogView

if TYPE_CHECKING:
    from segstore.storage.context import Context
    from segstore.storage.log.open import Opened
    from segstore.storage.producers.state_manager import Producers
    from segstore.storage.segment.segment import Segment


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
        self.writer = LogWriter(
            context.pool,
            self.directory,
            config,
            opened.segments,
            opened.end_offset,
            epochs.current,
            context.clock,
            self._rolled,
            producers,
        )
        self.flusher = Flusher(self.writer, lambda: self.view, opened.durable_offset, self._flushed)
        self.visible = Visible(self.writer, self.flusher, publisher, opened.start_offset, layout)
        needed = self.visible.publishing, self.flusher.lock, publisher.lock
        self.queue = AppendQueue(self.writer, self.visible.show, self._show_soon, needed)
        changed = opened.recovered is not None
        self.flushing = Flushing(context, self.writer, self.flusher, self.visible, changed)
        self.log_start = LogStart(self, epochs, start_moved)
        self.admin, self.naming = Mutex(), Mutex()
        self.unsettled: str | None = None
        """Why a compaction's swap was left half done: reopening finishes it, until then there is none."""
        self.visible.publish()

    @property
    def view(self) -> LogView:
        """What may be seen now; StoreClosedError where the topic was deleted."""
        view = self.visible.current
        return view if isinstance(view, LogView) else self.visible.view

    @property
    def recovery_point(self) -> int:
        """Up to this offset all is durable."""
        return self.flusher.recovery_point

    def _flushed(self, _: int) -> None:
        self.visible.publish()

    def _show_soon(self) -> None:
        self.context.scheduler.soon(self._show)

    def _show(self) -> None:
        with self.queue.token:
            self.queue.show()

    def show_rest(self) -> None:
        """Let be seen what an interrupt kept from that, here or elsewhere: the end, or the start."""
        with self.queue.token:
            self._show_rest()

    def _show_rest(self) -> None:
        if not self.visible.is_all:
            self.visible.show()

    def flush(self) -> None:
        """Make all that is visible durable. StorageError."""
        self.flushing.flush()

    # --- the log's end --------------------------------------------------------------------

    def sync_ahead(self) -> None:
        """Make durable what was written and is not shown, with the token held. StorageError: fenced."""
        self.flusher.sync_ahead(self.visible.ahead())

    def _rolled(self, base_offset: int) -> None:
        self.visible.layout += 1
        self.producers.snapshot(base_offset)
        self.flusher.rolled(self.writer.segments[-2], base_offset)
        self.flushing.soon(base_offset)

    def roll_from(self, view: LogView) -> bool:
        """Roll, so that what `view` shows lies in sealed segments; False where more has come meanwhile."""
        with self.queue.token:
            self.queue.drain()
            if self.writer.closed or self.writer.next_offset != view.end_offset:
                return False
            self.writer.roll_apart()
            self.visible.show()
        return True

    def roll_if_old(self, now_ms: int) -> None:
        """Roll a segment that was begun more than segment.ms ago, so that it may go in its time.
        StorageError.
        """
        with self.queue.token:
            self.writer.recall()
            if not self.writer.closed and self.writer.fenced is None and self.writer.active.outlived(now_ms):
                self.writer.roll_apart()
                self.visible.show()

    # --- compaction -----------------------------------------------------------------------

    @contextmanager
    def names_held(self) -> Iterator[None]:
        """No segment is removed, and the topic not deleted, meanwhile. StoreClosedError where it was."""
        with self.admin, self.naming:
            _ = self.view
            yield

    def last_records(self) -> dict[int, tuple[int, int]]:
        """See `Producers.last_records`."""
        with self.queue.token:
            self.writer.recall()
            return self.producers.last_records()

    def replace(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Let readers of this process see `new` in place of `old`, which lie in the log; with names held."""
        with self.queue.token:
            self.visible.replace(old, new)

    def relist(self, gone: Iterable[int]) -> None:
        """Files of segments were replaced, and those at the bases `gone` are no more: other processes look
        again. OSError.
        """
        for base in gone:
            self.producers.forget_snapshot(base)
        with self.queue.token:
            self.visible.layout += 1
            self.visible.show()

    # --- settings, closing ----------------------------------------------------------------

    def expire_producers(self, after_ms: int) -> int:
        """Forget producers that wrote nothing for so long: how many."""
        with self.queue.token:
            self.writer.recall()
            return self.producers.expire(after_ms)

    def configure(self, config: TopicConfig) -> None:
        """Use changed settings from the next append on."""
        with self.queue.token:
            self.writer.recall()
            self.config = self.writer.config = self.writer.active.config = config

    def close(self) -> None:
        """Write what is queued, make it durable, leave the directory as Kafka's clean shutdown does.
        StorageError.
        """
        with self.queue.token:
            self.queue.drain()
            self._show_rest()
            self.writer.closed = True
        if self.writer.settled():
            self.flush()
            self.writer.active.trim()
            if self.flushing.changed:
                self.producers.snapshot(self.view.end_offset)
        elif self.flushing.untold is not None:
            raise copy_of(self.flushing.untold)

    def settled(self) -> bool:
        """Whether the next open has nothing to finish or to take back."""
        return self.unsettled is None and self.writer.settled()

    def abandon(self) -> None:
        """The topic was deleted: appends are refused, readers keep what they have."""
        with self.naming, self.queue.token:
            self.queue.drain()
            self.writer.closed = True
            self.visible.withdraw()
