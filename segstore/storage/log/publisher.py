"""Publishes a partition's ends (log end offset, high watermark, last stable offset) to other processes, in
the partition's slot of the file `.segstore/ends`.

On disk is the slot. Threads: the holder of `Visible.publishing`, which is held while a view is replaced and
published.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from segstore.storage.log.flusher import Flusher
from segstore.storage.meta.published_ends import EndsWriter, Numbers, Place
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.native_tail import NativeTail


class Publisher:
    """Publishes the ends of one partition to other processes, in the partition's slot of `.segstore/ends`,
    together with `epoch`, the writer's leader epoch.
    """

    def __init__(self, ends: EndsWriter, key: int, epoch: int) -> None:
        self._ends, self._key, self.epoch = ends, key, epoch
        self.lock = ends.lock  # `lock` is held to publish the ends of any partition
        self._slot = ends.claim(key)
        self.share: Any = None if ends.sharing is None else ends.sharing.of(self._slot, key)
        """A `seg_share *`, if other processes append to the partition, too; else None."""

    def begin_epoch(self, epoch: int) -> None:
        """Publish this leader epoch together with the partition's ends from now on."""
        self.epoch = epoch

    def publish(self, view: LogView, written: LogView, flusher: Flusher, layout: int) -> None:
        """Publish the end of a partition's `view`, and the end of the `written` log, which may be higher.
        `layout` is `LogSegments.layout`.
        """
        ends = self._ends_of(view, written, flusher, layout)
        if self.share is None:
            self._ends.publish_one(self._slot, ends)
        else:
            self._ends.publish([self._slot], [ends], [_place(written)])

    def notify(self) -> None:
        """Call the functions of `EndsWriter.on_published`, because C has published an end without calling
        them.
        """
        for call in self._ends.on_published:
            call()

    def bind(self, tail: NativeTail, view: LogView, flusher: Flusher, layout: int) -> None:
        """Make C publish the view's end, and the ends of later appends, in the partition's slot."""
        c = tail.c
        memory, c.ends_len = self._ends.mapping
        tail.keep("ends", memory)  # `c.ends` is a bare pointer, which does not keep the mapping alive
        c.ends = memory
        c.slot, c.layout = self._slot, layout
        c.key, c.start_offset, c.synced = self._key, view.start_offset, self.synced(flusher)
        c.stable_offset = -1 if view.stable_offset == view.end_offset else view.stable_offset
        if self.share is not None:
            self.share.start_offset, self.share.layout = view.start_offset, layout

    @staticmethod
    def synced(flusher: Flusher) -> int:
        """Return the number that is published for the recovery point: the recovery point itself, or its
        bitwise complement if a sync has failed.
        """
        return flusher.recovery_point ^ -int(flusher.failed)

    @staticmethod
    def publish_all(published: Sequence[tuple[Publisher, LogView, LogView, Flusher, int]]) -> None:
        """Publish the views of several partitions. `published` has, for each partition, its publisher and the
        arguments for that publisher's `publish`. All partitions of one store directory are published by one
        call. A replicated store has several directories, which are published one after the other.
        """
        if len(published) == 1:  # this case needs no grouping, and most transactions have one partition
            publisher, view, written, flusher, layout = published[0]
            publisher.publish(view, written, flusher, layout)
            return
        by_directory: dict[EndsWriter, tuple[list[int], list[Numbers], list[Place]]] = {}
        for publisher, view, written, flusher, layout in published:
            slots, ends, places = by_directory.setdefault(publisher._ends, ([], [], []))
            slots.append(publisher._slot)
            ends.append(publisher._ends_of(view, written, flusher, layout))
            places.append(_place(written))
        for writer, (slots, ends, places) in by_directory.items():
            writer.publish(slots, ends, places)

    def _ends_of(self, view: LogView, written: LogView, flusher: Flusher, layout: int) -> Numbers:
        end, shown, synced = written.end_offset, view.end_offset, self.synced(flusher)
        return self._key, view.start_offset, end, shown, view.stable_offset, synced, layout, self.epoch


def _place(written: LogView) -> Place:
    """Return the active segment's base offset, and the byte position of the log's end in that segment."""
    return written.bases[-1], written.end_position
