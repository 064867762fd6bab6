"""`StateRuns`: the offsets in flight of a share partition, as maximal runs (Kafka: SharePartition's
cachedState, InFlightBatch, InFlightState).

Kafka keeps a state and a timer for each offset of a batch once one of its offsets was acknowledged alone.
Here all adjacent offsets with equal fields are one run.

Owns nothing on disk. Threads: one at a time, under the share partition's lock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from segstore.coordinator.share.core.values import OffsetRange, RecordState

NOWHERE = OffsetRange(-1, -2)
"""The `piece` of a run that needs none, for example because its state is final."""


class Lock(NamedTuple):
    """The acquisition lock of one member, which expires at the time `until`, in ms. `grant` is the token of
    the grant.
    """

    owner: str
    until: float
    grant: int


class StateRun:
    """Adjacent offsets, `first` to `last`, with one state, delivery count and lock.

    `piece` is the range of offsets that came in flight together (Kafka: InFlightBatch). Near the delivery
    limit, the size of the piece limits the number of records that are delivered together. If `write` is not
    0, a transition to `target` is pending until the write with that token has completed.
    """

    __slots__ = ("count", "first", "last", "lock", "piece", "state", "target", "write")

    def __init__(
        self,
        first: int,
        last: int,
        state: RecordState,
        count: int = 0,
        piece: OffsetRange = NOWHERE,
        lock: Lock | None = None,
        write: int = 0,
        target: RecordState | None = None,
    ) -> None:
        self.first, self.last, self.state, self.count = first, last, state, count
        self.piece, self.lock, self.write, self.target = piece, lock, write, target

    def values(self) -> tuple[object, ...]:
        """Return all fields as a tuple, which can be compared."""
        fields = self.first, self.last, self.state, self.count
        return (*fields, self.piece, self.lock, self.write, self.target)

    def copy(self, first: int, last: int) -> StateRun:
        """Return a run of the offsets `first` to `last`; its other fields are those of this run."""
        copied = StateRun.__new__(StateRun)
        copied.first, copied.last, copied.state, copied.count = first, last, self.state, self.count
        copied.piece, copied.lock = self.piece, self.lock
        copied.write, copied.target = self.write, self.target
        return copied

    def joins(self, other: StateRun) -> bool:
        """Return whether `other` begins right after this run and is equal in all fields but the offsets."""
        return (
            self.last + 1 == other.first
            and self.state is other.state
            and self.count == other.count
            and self.write == other.write
            and self.target is other.target
            and self.lock == other.lock
            and self.piece == other.piece
        )


class StateRuns:
    """Disjoint runs in the order of offsets. There may be holes, offsets without a run, between them."""

    __slots__ = ("_firsts", "_runs")

    def __init__(self) -> None:
        self._runs: list[StateRun] = []
        self._firsts: list[int] = []

    def __iter__(self) -> Iterator[StateRun]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def copy(self) -> StateRuns:
        """Return an independent copy."""
        copied = StateRuns()
        copied._runs = [run.copy(run.first, run.last) for run in self._runs]
        copied._firsts = list(self._firsts)
        return copied

    def position(self, offset: int) -> int:
        """Return the index of the run that contains `offset`. If no run contains it, return the index of the
        first run above it.
        """
        at = bisect_right(self._firsts, offset) - 1
        return at if at >= 0 and offset <= self._runs[at].last else at + 1

    def from_offset(self, offset: int) -> Iterator[StateRun]:
        """Yield the run that contains `offset`, if any, and all later runs; the runs must not change during
        the iteration.
        """
        runs = self._runs
        for at in range(self.position(offset), len(runs)):
            yield runs[at]

    def overlapping(self, first: int, last: int) -> list[StateRun]:
        """Return the runs with an offset from `first` to `last`, without cutting them."""
        begin = bisect_right(self._firsts, first) - 1
        if begin < 0 or first > self._runs[begin].last:
            begin += 1
        return self._runs[begin : bisect_right(self._firsts, last)]

    def cut(self, first: int, last: int) -> list[StateRun]:
        """Split each run that is only partly in the range from `first` to `last`. Return the runs in the
        range. `join` undoes the split.
        """
        begin = self._cut(first)
        return self._runs[begin : self._cut(last + 1)]

    def _cut(self, offset: int) -> int:
        at = bisect_right(self._firsts, offset) - 1
        if at < 0:
            return 0
        run = self._runs[at]
        if run.first < offset <= run.last:
            self._runs.insert(at + 1, run.copy(offset, run.last))
            self._firsts.insert(at + 1, offset)
            run.last = offset - 1
        return at if run.first == offset else at + 1

    def join(self, first: int, last: int) -> None:
        """Join adjacent runs of equal fields, from the run below `first` to the run above `last`."""
        runs, firsts = self._runs, self._firsts
        at = bisect_right(firsts, first)
        kept, end = at - 2 if at > 2 else 0, bisect_right(firsts, last + 1)
        for at in range(kept + 1, end):
            run = runs[at]
            if runs[kept].joins(run):
                runs[kept].last = run.last
            else:
                kept += 1
                runs[kept], firsts[kept] = run, run.first
        del runs[kept + 1 : end], firsts[kept + 1 : end]

    def insert(self, run: StateRun) -> None:
        """Add a run. Raises AssertionError if it overlaps another run."""
        at = bisect_right(self._firsts, run.first)
        assert at == 0 or self._runs[at - 1].last < run.first, "runs overlap"
        assert at == len(self._runs) or run.last < self._firsts[at], "runs overlap"
        self._runs.insert(at, run)
        self._firsts.insert(at, run.first)

    def drop_below(self, offset: int) -> list[StateRun]:
        """Remove all offsets below `offset`, and return their runs."""
        end = self._cut(offset)
        dropped = self._runs[:end]
        del self._runs[:end], self._firsts[:end]
        return dropped
