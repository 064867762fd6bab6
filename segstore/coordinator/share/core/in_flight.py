"""`InFlight`: the offsets in flight of a share partition, with their states, and the changes of these states
(Kafka: SharePartition, InFlightState).

A hole in `runs` between `start` and `next_new` has offsets that no fetch has read since the share partition
was loaded (KAFKA-18494). These offsets are fetched as new, and the start does not pass them. No run begins
below `start`. `next_new` is the offset after the last run; if there is no run, it is `start`.

Owns nothing on disk. Threads: one at a time, under the share partition's lock.
"""

from __future__ import annotations

from collections.abc import Iterator

from segstore.coordinator.share.core.deadlines import LockDeadlines
from segstore.coordinator.share.core.runs import NOWHERE, Lock, StateRun, StateRuns
from segstore.coordinator.share.core.values import RecordState

AVAILABLE, ACQUIRED, ARCHIVED = RecordState.AVAILABLE, RecordState.ACQUIRED, RecordState.ARCHIVED
ENDS = frozenset((RecordState.ACKNOWLEDGED, RecordState.ARCHIVED))
"""The final states of a record."""


class InFlight:
    """The offsets in flight. `complete` is the number of offsets from `start` on that are acknowledged or
    archived, or will be when a pending write succeeds (Kafka: deliveryCompleteCount).
    """

    __slots__ = ("_searched", "complete", "locks", "next_new", "runs", "start")

    def __init__(self, start: int) -> None:
        self.start = self.next_new = self._searched = start
        self.complete = 0
        self.runs = StateRuns()
        self.locks = LockDeadlines()

    def copy(self) -> InFlight:
        """Return an independent copy."""
        copied = InFlight(self.start)
        copied.next_new, copied.complete, copied._searched = self.next_new, self.complete, self._searched
        copied.runs, copied.locks = self.runs.copy(), self.locks.copy()
        return copied

    def first_wanted(self) -> int:
        """Return the first offset that is Available or in no run; `next_new` if there is none (rules Q17,
        Q21).
        """
        expected = max(self._searched, self.start)
        for run in self.runs.from_offset(expected):
            if run.first > expected or run.state is AVAILABLE:
                break
            expected = run.last + 1
        self._searched = expected
        return expected

    def segments(self, first: int, last: int) -> Iterator[tuple[int, int, StateRun | None]]:
        """Split the offsets from `first` to `last` at the borders of runs, and yield (first, last, run) of
        each part; run is None for offsets without a run. The caller may change runs up to the end of the
        yielded part.
        """
        while first <= last:
            run = next(self.runs.from_offset(first), None)
            if run is None or run.first > first:
                until = last if run is None else min(last, run.first - 1)
                yield first, until, None
            else:
                until = min(last, run.last)
                yield first, until, run
            first = until + 1

    # --- transitions -----------------------------------------------------------------------------

    def add(self, run: StateRun) -> None:
        """Add a run of offsets that no run contains yet."""
        self.runs.insert(run)
        self.next_new = max(self.next_new, run.last + 1)
        if run.state in ENDS:
            self.complete += run.last - run.first + 1
        elif run.state is AVAILABLE:
            self._searched = min(self._searched, run.first)

    def acquire(self, run: StateRun, lock: Lock) -> None:
        """Lock an Available run, and raise its delivery count, which no other method raises (rule Q12)."""
        run.state, run.lock = ACQUIRED, lock
        run.count += 1
        self.locks.add(lock.until, run.last - run.first + 1)

    def lock(self, run: StateRun, lock: Lock) -> None:
        """Replace the lock of an Acquired run by `lock`; state and delivery count do not change."""
        self.unlock(run)
        run.lock = lock
        self.locks.add(lock.until, run.last - run.first + 1)

    def unlock(self, run: StateRun) -> None:
        """Remove the deadline of a run's lock; `run.lock` itself stays."""
        assert run.lock is not None
        self.locks.remove(run.lock.until, run.last - run.first + 1)

    def begin(self, run: StateRun, target: RecordState, write: int) -> None:
        """Begin a run's transition to the state `target`; it completes when the write with the token `write`
        succeeds (rule Q33).
        """
        n = run.last - run.first + 1
        if run.state is ACQUIRED:
            assert run.lock is not None
            self.locks.remove(run.lock.until, n)
        run.target, run.write = target, write
        if target in ENDS:
            self.complete += n

    def take_back(self, run: StateRun) -> None:
        """Undo a run's transition, because its write failed. The caller must restore the deadline of the
        run's lock (rule Q34).
        """
        if run.target in ENDS:
            self.complete -= run.last - run.first + 1
        run.target, run.write = None, 0

    def become(self, run: StateRun, state: RecordState) -> None:
        """Set a run to a state without a lock. The caller must already have removed the deadline of the run's
        lock.
        """
        began = run.write and run.target in ENDS
        run.state, run.lock, run.target, run.write = state, None, None, 0
        if state is AVAILABLE:
            self._searched = min(self._searched, run.first)
        elif state in ENDS:
            run.count, run.piece = 0, NOWHERE
            self.complete += 0 if began else run.last - run.first + 1

    def archive_unread(self, first: int, last: int) -> None:
        """Archive, in memory only, the offsets from `first` to `last` that are Available or in no run (rules
        Q22, Q42, Q44).
        """
        for begin, end, run in self.segments(first, last):
            if run is None:
                self.add(StateRun(begin, end, ARCHIVED))
            elif run.state is AVAILABLE:
                for part in self.runs.cut(begin, end):
                    self.become(part, ARCHIVED)
        self.runs.join(first, last)

    # --- the start -------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Move the start to the first offset that is in no run, has a pending write, or is neither
        acknowledged nor archived (rule Q15). Return whether the start moved.
        """
        start = self.start
        for run in self.runs:
            if run.first != start or run.write or run.state not in ENDS:
                break
            start = run.last + 1
        return start > self.start and self.move_start(start)

    def move_start(self, start: int) -> bool:
        """Move the start up to `start`, and drop all offsets below it, including locked offsets (rule Q41).
        Return True.
        """
        for run in self.runs.drop_below(start):
            if run.state is ACQUIRED and not run.write:
                self.unlock(run)
            if run.state in ENDS or (run.write and run.target in ENDS):
                self.complete -= run.last - run.first + 1
        self.start, self.next_new = start, max(start, self.next_new)
        return True
