"""A look at a partition: all of it, or what has come, with as little reading as shows every change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

import segstore
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.segment import Segment

from .model import Content
from .observe import Batch, batches, committed, records


class Seen(NamedTuple):
    """A partition at one moment; `records` are those that anybody may read, `committed` those of
    read_committed.
    """

    start: int
    end: int
    stable: int
    size: int
    batches: list[Batch]
    records: dict[int, Content]
    committed: list[int]


class Piece(NamedTuple):
    """What there is in one segment."""

    batches: list[Batch]
    records: dict[int, Content]
    committed: list[int]


class Eyes:
    """Looks at partitions. What lies in a segment that nobody has touched since the last look, where nothing
    more is visible or decided either, is not looked at again; `touched` counts the changes of its files.
    """

    def __init__(self, touched: Callable[[str], int]) -> None:
        self._touched = touched
        self._known: WeakKeyDictionary[Segment, tuple[tuple[int, ...], Piece]] = WeakKeyDictionary()

    def look(self, log: segstore.PartitionLog, since: int | None = None) -> Seen:
        """All of a partition, or what begins at offset `since`."""
        view, stable = log.source.view, log.last_stable_offset
        start = log.start_offset if since is None else since
        pieces: list[Piece] = []
        unknown: list[int] = []
        for slot in range(view.slot(start), len(view.segments)):
            held = self._known.get(view.segments[slot])
            if since is None and held is not None and held[0] == self._state(view, slot, stable):
                pieces += [*self._pieces(log, view, unknown, start), held[1]]
                unknown = []
            else:
                unknown.append(slot)
        pieces += self._pieces(log, view, unknown, start)
        if since is None:
            for slot, piece in enumerate(pieces, view.slot(start)):
                self._known[view.segments[slot]] = self._state(view, slot, stable), piece
        found: dict[int, Content] = {}
        for piece in pieces:
            found |= piece.records
        return Seen(
            log.start_offset, log.end_offset, log.last_stable_offset, log.size,
            [batch for piece in pieces for batch in piece.batches], found,
            [offset for piece in pieces for offset in piece.committed],
        )  # fmt: skip

    def _state(self, view: LogView, slot: int, stable: int) -> tuple[int, ...]:
        """What its piece follows from."""
        low, high = _span(view, slot, view.start_offset)
        return low, high, min(stable, high), view.end_of(slot), self._touched(view.segments[slot].path)

    def _pieces(
        self, log: segstore.PartitionLog, view: LogView, slots: list[int], start: int
    ) -> Iterator[Piece]:
        """Segments that follow each other, read as one."""
        if not slots:
            return
        low, high = _span(view, slots[0], start)[0], view.next_base(slots[-1])
        found = records(log, low, high)
        kept = committed(log, low, min(high, log.last_stable_offset))
        for slot in slots:
            low, high = _span(view, slot, start)
            yield Piece(
                batches(view, slot, start),
                {offset: content for offset, content in found.items() if low <= offset < high},
                [offset for offset in kept if low <= offset < high],
            )


def _span(view: LogView, slot: int, start: int) -> tuple[int, int]:
    """The offsets of a segment, from `start` on."""
    return max(view.bases[slot], start), view.next_base(slot)
