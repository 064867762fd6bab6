"""Finds the stretches of a sealed segment that are no batches, and offsets that nothing stands for.

On disk: reads only. Threads: one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from segstore._native import ffi, lib
from segstore.errors import CorruptRecordError
from segstore.records import decode
from segstore.storage.segment.batch_scan import BAD, Step, next_whole, walk
from segstore.storage.segment.segment import Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Stretch(NamedTuple):
    """Bytes `position` to `end` hold nothing that can be read; of offsets `first` to `below` - 1 nothing is
    left. The one or the other may be nothing.
    """

    position: int
    end: int
    first: int
    below: int
    reason: str


def stretches(segment: Segment, below: int, gaps_end: int) -> list[Stretch]:
    """Those of a segment whose offsets are below `below`; compaction may have left gaps below `gaps_end` (-1:
    anywhere). OSError.
    """
    search = _Search(segment, below, gaps_end)
    while search.position < segment.size:
        search.go_on()
    search.missing(segment.size, below)
    return search.found


class _Search:
    """Where it is: the next byte, and the least offset that may come there."""

    def __init__(self, segment: Segment, below: int, gaps_end: int) -> None:
        self.segment, self.below, self._gaps_end = segment, below, gaps_end
        self._files, self._handle = segment.pool.files, segment.handle
        self.position, self.expected = 0, segment.base_offset
        self.found: list[Stretch] = []
        self._last: tuple[int, int, int] | None = None  # the last batch: position, offset before it, base

    def go_on(self) -> None:
        """Over good batches, and the damage behind them if there is any."""
        size, reason = self.segment.size, ""
        for step in walk(
            self._files, self._handle, self.position, size, check_crcs=True, least=self.expected
        ):
            n, reason = self._good(step)
            self._take(step.batches[:n])
            self.position = step.stop.position if n == len(step.batches) else int(step.batches["position"][n])
            if n < len(step.batches):
                break
            reason = BAD.get(step.stop.status, "")
        if self.position < size:
            self._skip(reason or "the file was cut")

    def _good(self, step: Step) -> tuple[int, str]:
        """How many leading batches can be of this segment and can be decoded, and why no more."""
        batches = step.batches
        beyond = np.flatnonzero(batches["last_offset"] >= self.below)
        n, reason = (int(beyond[0]), BAD[lib.SEG_BAD_OFFSETS]) if len(beyond) else (len(batches), "")
        for i in range(n):
            try:
                decode(step.data, batches[i : i + 1], self.segment.path, step.position)
            except CorruptRecordError as error:
                return i, error.reason
        return n, reason

    def _take(self, batches: NDArray[np.void]) -> None:
        fields = ("position", "base_offset", "last_offset")
        for position, base, last in zip(*(batches[name].tolist() for name in fields), strict=True):
            self.missing(position, base)
            self._last = position, self.expected, base
            self.expected = last + 1

    def missing(self, position: int, base: int) -> None:
        """Offsets up to `base` are not there, in front of the batch at `position`."""
        if base > self.expected >= self._gaps_end >= 0:
            last = base - 1
            reason = f"offsets {self.expected} to {last} are missing"
            self.found.append(Stretch(position, position, self.expected, base, reason))

    def _skip(self, reason: str) -> None:
        """Pass by the damage: what is at `position`, or the last batch, whose base offset no CRC covers."""
        bad, behind = self.position, self.position + 1
        if self._last is not None and self._last[2] > self._last[1] and self._follows(self._last[1]):
            behind, (bad, self.expected, _) = bad, self._last
            reason = BAD[lib.SEG_BAD_OFFSETS]
            if self.found and self.found[-1].position == bad:
                self.found.pop()
        end, base = self._next(behind)
        self.found.append(Stretch(bad, end, self.expected, base, reason))
        self.position, self.expected, self._last = end, base, None

    def _follows(self, before: int) -> bool:
        """Whether a whole batch lies at `position` that would follow offset `before`."""
        found = self._next(self.position, before)
        return found[0] == self.position < self.segment.size

    def _next(self, position: int, least: int | None = None) -> tuple[int, int]:
        """Where the next whole batch lies that can be of this segment, and its base offset."""
        size, header = self.segment.size, ffi.new("seg_batch *")
        least = self.expected if least is None else least
        while True:
            found = next_whole(self._files, self._handle, position, size, least)
            if found is None:
                return size, self.below
            last = self.segment.header_at(found, size, header)
            if last is not None and last < self.below:
                return found, int(header.base_offset)
            position = found + 1
