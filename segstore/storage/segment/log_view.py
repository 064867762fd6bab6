"""What a partition's readers see: an immutable picture of its segments and its visible end.

On disk: nothing. Threads: any; a view never changes, its owner replaces it whole, and so readers
take no lock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from segstore.errors import OffsetOutOfRangeError
from segstore.storage.segment.segment import Segment


class LogView(NamedTuple):
    """Segments in order with their base offsets, the last one visible up to byte `end_position`.

    `stable_offset` is Kafka's last stable offset: below it every transaction is decided.
    """

    segments: tuple[Segment, ...]
    bases: tuple[int, ...]
    start_offset: int
    end_offset: int
    end_position: int
    stable_offset: int

    def check(self, offset: int, where: str) -> None:
        """OffsetOutOfRangeError where `offset` is not in [start, end]."""
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRangeError(offset, self.start_offset, self.end_offset, where)

    def slot(self, offset: int) -> int:
        """Which segment holds `offset`, or would."""
        return bisect_right(self.bases, offset, 1) - 1

    def next_base(self, slot: int) -> int:
        """The offset that all of segment `slot` that may be seen is below."""
        slot += 1
        return self.end_offset if slot == len(self.bases) else min(self.bases[slot], self.end_offset)

    def end_of(self, slot: int) -> int:
        """Up to which byte segment `slot` is visible."""
        return self.end_position if slot == len(self.segments) - 1 else self.segments[slot].size


class Together:
    """Views of several partitions that become visible by one store, `done`, whatever thread is looking. What
    was written for them stays from then on. `partitions`: the `Visible` of each one whose view
    is replaced.
    """

    __slots__ = ("done", "partitions")

    def __init__(self) -> None:
        self.done = False
        self.partitions: Sequence[Any] = ()


class Turning(NamedTuple):
    """In place of a partition's view while several are replaced."""

    before: LogView
    after: LogView
    together: Together

    @property
    def view(self) -> LogView:
        return self.after if self.together.done else self.before
