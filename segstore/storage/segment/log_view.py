"""The part of a partition that readers see: an immutable view of its segments, log start offset and visible
end.

Nothing is on disk. Threads: any, without locks: a view never changes; its owner replaces it by a new view.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from segstore.errors import OffsetOutOfRangeError
from segstore.storage.segment.segment import Segment


class _Fields(NamedTuple):
    segments: tuple[Segment, ...]
    bases: tuple[int, ...]
    start_offset: int
    end_offset: int
    end_position: int
    stable_offset: int


class LogView(_Fields):
    """An immutable view: segments in order, with their base offsets. The last segment is visible up to byte
    `end_position`.

    `stable_offset` is Kafka's last stable offset, below which every transaction is committed or aborted; -1
    if it is not known.
    """

    sendable: Any = None
    """The `Sendable` of the last transfer from this view (`storage.transfer.short_way`), or None."""

    at_once: Any = None
    """The `Sendable` of the last transfer from this view with C's later appends, or None. `seg_transfer`
    reads this attribute.
    """

    def check(self, offset: int, where: str) -> None:
        """Raise OffsetOutOfRangeError if `offset` is not in [start, end]."""
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRangeError(offset, self.start_offset, self.end_offset, where)

    def slot(self, offset: int) -> int:
        """Return the index of the segment whose range of offsets contains `offset`."""
        return bisect_right(self.bases, offset, 1) - 1

    def next_base(self, slot: int) -> int:
        """Return the upper bound of the visible offsets of segment `slot`: the next segment's base offset, or
        the view's end.
        """
        slot += 1
        return self.end_offset if slot == len(self.bases) else min(self.bases[slot], self.end_offset)

    def bounds(self, slot: int) -> tuple[int, int]:
        """Return (`end_of(slot)`, `next_base(slot)`)."""
        if slot == len(self.segments) - 1:
            return self.end_position, self.end_offset
        return self.segments[slot].final_size, min(self.bases[slot + 1], self.end_offset)

    def lacks(self, earlier: LogView | None) -> bool:
        """Return whether this view lacks segments that an earlier view has."""
        return earlier is not None and not set(earlier.bases) <= set(self.bases)

    def end_of(self, slot: int) -> int:
        """Return the byte at which the visible part of segment `slot` ends."""
        return self.end_position if slot == len(self.segments) - 1 else self.segments[slot].final_size


class AtomicPublish:
    """Joins the new views of several partitions, so that these views become visible at the same moment. From
    the moment at which `done` becomes True, all threads see the new views, and the appends in the new views
    can't be undone any more. `partitions` has the `Visible` of each partition with a new view.
    """

    __slots__ = ("done", "partitions")

    def __init__(self) -> None:
        self.done = False
        self.partitions: Sequence[Any] = ()


class PendingView(NamedTuple):
    """The view of a partition while the views of several partitions are replaced together. Readers see
    `before` until `together.done` is True, and `after` from then on. After `after` is published, followers
    see `written`, the new view of the whole written log.
    """

    before: LogView
    after: LogView
    together: AtomicPublish
    written: LogView

    @property
    def view(self) -> LogView:
        return self.after if self.together.done else self.before
