"""What readers see of a partition: an immutable view of its segments, log start offset and visible end.

Nothing of it is on disk. Threads: any; a view never changes, its owner replaces it whole, and so readers take
no lock.
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
    """Segments in order with their base offsets, the last one visible up to byte `end_position`.

    `stable_offset` is Kafka's last stable offset: below it every transaction is decided. -1: not known.
    """

    sendable: Any = None
    """What the last transfer has found out about a segment (`storage.transfer.short_way`): it goes with the
    view.
    """

    at_once: Any = None
    """The same, for what readers see now from this view and the appends of its tail: `seg_transfer` looks
    here.
    """

    def check(self, offset: int, where: str) -> None:
        """Raise OffsetOutOfRangeError where `offset` is not in [start, end]."""
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRangeError(offset, self.start_offset, self.end_offset, where)

    def slot(self, offset: int) -> int:
        """Return the number of the segment that holds `offset`, or would hold it."""
        return bisect_right(self.bases, offset, 1) - 1

    def next_base(self, slot: int) -> int:
        """Return the offset below which all visible batches of segment `slot` lie."""
        slot += 1
        return self.end_offset if slot == len(self.bases) else min(self.bases[slot], self.end_offset)

    def bounds(self, slot: int) -> tuple[int, int]:
        """Return `end_of` and `next_base` of segment `slot`."""
        if slot == len(self.segments) - 1:
            return self.end_position, self.end_offset
        return self.segments[slot].final_size, min(self.bases[slot + 1], self.end_offset)

    def lacks(self, earlier: LogView | None) -> bool:
        """Return whether segments of an earlier view are not in this one."""
        return earlier is not None and not set(earlier.bases) <= set(self.bases)

    def end_of(self, slot: int) -> int:
        """Return the byte up to which segment `slot` is visible."""
        return self.end_position if slot == len(self.segments) - 1 else self.segments[slot].final_size


class AtomicPublish:
    """Marks views of several partitions that become visible at once: setting `done` shows them to all
    threads. What was written for them stays in the logs from then on. `partitions` has the `Visible` of each
    partition whose view is replaced.
    """

    __slots__ = ("done", "partitions")

    def __init__(self) -> None:
        self.done = False
        self.partitions: Sequence[Any] = ()


class PendingView(NamedTuple):
    """Stands in place of a partition's view while the views of several partitions are replaced at once.
    `written` has all that was written; followers see it when `after` is published.
    """

    before: LogView
    after: LogView
    together: AtomicPublish
    written: LogView

    @property
    def view(self) -> LogView:
        return self.after if self.together.done else self.before
