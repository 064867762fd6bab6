"""Moves a partition's log start offset up, and removes what is below: by hand, and by retention.

On disk: the start is durable before a byte goes; then the segments below are `.deleted`, as long as
file.delete.delay.ms says, their producer snapshots are removed, and the leader epochs begin with the log.
Threads: any, one at a time (`admin` of the partition); the append token is held to replace the view only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from segstore.errors import StorageError
from segstore.storage.log import retention
from segstore.storage.log.writer import bury_segment
from segstore.storage.meta.offset_checkpoints import LeaderEpochs
from segstore.storage.segment.log_view import LogView

if TYPE_CHECKING:
    from segstore.storage.log.partition import Partition
    from segstore.storage.segment.segment import Segment


class Retained(NamedTuple):
    """What retention let go: segments, and bytes of their logs."""

    segments: int
    bytes: int


class LogStart:
    """`start_moved` makes a new log start offset durable."""

    def __init__(
        self, partition: Partition, epochs: LeaderEpochs, start_moved: Callable[[int], None]
    ) -> None:
        self._partition, self._epochs, self._start_moved = partition, epochs, start_moved

    def delete_records(self, before: int) -> int:
        """Move the log start offset up to `before` (-1: the high watermark); whole segments below go. The
        new start.

        The start is durable before a byte goes. OffsetOutOfRangeError.
        """
        it = self._partition
        with it.admin:
            view = it.view
            before = view.end_offset if before == -1 else before
            view.check(max(before, view.start_offset) if before >= 0 else before, it.directory)
            if before > view.start_offset:
                self._advance(before, delay_ms=0)
            else:
                it.show_rest()
            return max(before, view.start_offset)

    def retain(self, now_ms: int) -> Retained:
        """Let the segments go that retention.bytes and retention.ms no longer keep, oldest first.

        Their files stay for file.delete.delay.ms as `.deleted`. StorageError, OSError.
        """
        it = self._partition
        with it.admin:
            view = it.view
            count = retention.breached(view, it.config, now_ms, it.context.files)
            if count == len(view.segments):
                count -= not self._rolled_from(view, count > 1)
            if not count:
                return Retained(0, 0)
            before = it.writer.segments[count].base_offset
            self._advance(max(before, view.start_offset), it.config.file_delete_delay_ms)
            return Retained(count, retention.freed(view, count))

    def _rolled_from(self, view: LogView, others: bool) -> bool:
        """As `roll_from`. Where that fails, `others` go without it, which may be what makes room for it."""
        try:
            return self._partition.roll_from(view)
        except StorageError:
            if not others:
                raise
            return False

    def _advance(self, start: int, delay_ms: int) -> None:
        """Let the log begin at `start`: that is durable before a byte goes."""
        it = self._partition
        it.flusher.flush(start)
        self._start_moved(start)
        with it.queue.token:
            dropped = it.visible.begin_at(start)
        self._remove(dropped, delay_ms)
        # Last: it frees nothing, and what a crash leaves of it the next open puts right.
        with it.naming, suppress(OSError):  # without it, the directory may be a new topic's of that name
            if it.visible.current is not None and self._epochs.truncate_from_start(start):
                self._epochs.save()

    def _remove(self, segments: list[Segment], delay_ms: int) -> None:
        """Oldest first, so that a crash leaves no gap within the log."""
        it = self._partition
        for segment in segments:
            it.context.graveyard.put(bury_segment(segment, it.context.clock()), delay_ms)
            it.producers.forget_snapshot(segment.base_offset)
        if segments:
            it.context.files.sync_dir(it.directory)
