"""`SharePartition`: the state of one partition for one share group (KIP-932; Kafka: SharePartition).

Each method that handles an event changes the state and returns an `Outcome`: a write of durable state to
make, dead letters to append, and whether to wake waiting fetches. Several writes may be pending, and may
complete in any order. Offsets with a pending write are neither granted nor acknowledged, and the start does
not pass them (rule Q33 of docs/queue-rules.md).

Owns nothing on disk. Threads: one at a time, under the lock of the share partition; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from segstore.coordinator.share.core.acknowledgement import AckStep, check_form, collect
from segstore.coordinator.share.core.acquisition import Acquisition
from segstore.coordinator.share.core.in_flight import ARCHIVED, AVAILABLE, ENDS, InFlight
from segstore.coordinator.share.core.runs import Lock, StateRun
from segstore.coordinator.share.core.stored import cut_above, loaded
from segstore.coordinator.share.core.values import (
    AckBatch,
    AcknowledgeType,
    Acquired,
    Cause,
    DeadLetter,
    Durable,
    Grant,
    Limits,
    OffsetRange,
    Outcome,
    ReadBatch,
    RecordState,
)
from segstore.coordinator.share.core.writes import PendingWrite

ARCHIVING = RecordState.ARCHIVING
REJECT = AcknowledgeType.REJECT
NOTHING = Outcome()
# Calling `tuple.__new__`, which is C code, is faster than calling the class, whose `__new__` is Python code.
_outcome: Callable[[tuple[Any, ...]], Outcome] = partial(tuple.__new__, Outcome)


class SharePartition:
    """The records in flight of a share partition. `cut` is True if `load` has removed offsets from the state
    because they were above the log's end (rule Q48).
    """

    __slots__ = ("_flight", "_tokens", "_writes", "cut")

    def __init__(self, start: int = -1) -> None:
        self._flight = InFlight(start)
        self._writes: dict[int, PendingWrite] = {}
        self._tokens = 0
        self.cut = False

    @classmethod
    def load(cls, durable: Durable, log_start: int, log_end: int) -> SharePartition:
        """Return the share partition with the state `durable`, whose log has the offsets from `log_start` to
        before `log_end`.

        Records that an earlier process had granted are granted again, as new records (rule Q21). Raises
        CorruptStateError (rule Q61).
        """
        kept = cut_above(durable, log_end)
        self = cls()
        self.cut = kept is not durable
        self._flight = loaded(kept)
        if 0 <= self.start < log_start:
            self.move_log_start(log_start)
        return self

    def copy(self) -> SharePartition:
        """Return an independent copy."""
        copied = SharePartition()
        copied._flight, copied._tokens, copied.cut = self._flight.copy(), self._tokens, self.cut
        copied._writes = {token: write.copy() for token, write in self._writes.items()}
        return copied

    # --- queries ---------------------------------------------------------------------------------

    @property
    def start(self) -> int:
        """Return the share-partition start offset; -1 if it is not known, before a call of `begin_at`."""
        return self._flight.start

    @property
    def next_new(self) -> int:
        """Return the offset after the last offset in flight."""
        return self._flight.next_new

    @property
    def window(self) -> int:
        """Return the number of offsets from the start to the last offset in flight (Kafka:
        InFlightMessageCount).
        """
        return self._flight.next_new - self._flight.start

    @property
    def complete(self) -> int:
        """Return the number of offsets from the start on that are acknowledged or archived, or will be when a
        pending write succeeds (rule Q40).
        """
        return self._flight.complete

    def in_flight(self) -> int:
        """Return the number of offsets in flight that are Available, Acquired or Archiving."""
        runs = (run for run in self._flight.runs if run.state not in ENDS)
        return sum(run.last - run.first + 1 for run in runs)

    def lag(self, high_watermark: int) -> int:
        """Return the number of offsets from the start to below `high_watermark` that are neither acknowledged
        nor archived (rule Q40); -1 if the start is not known.
        """
        return -1 if self.start < 0 else high_watermark - self.start - self.complete

    def deadline(self) -> float | None:
        """Return the time in ms at which the first acquisition lock expires; None if no offset is locked."""
        return self._flight.locks.earliest()

    def acquired_by(self, member: str) -> tuple[Acquired, ...]:
        """Return the offsets that a member has acquired, except offsets with a pending write."""
        runs = self._flight.runs
        locked = (run for run in runs if run.lock and run.lock.owner == member and not run.write)
        return tuple(Acquired(run.first, run.last, run.count) for run in locked)

    def runs(self) -> tuple[StateRun, ...]:
        """Return the runs of offsets in flight. The caller must not change the runs."""
        return tuple(self._flight.runs)

    def fetch_offset(self) -> int:
        """Return the offset at which the next fetch begins (rule Q17); -1 if the start is not known."""
        return self._flight.first_wanted()

    def may_grant(self, limits: Limits) -> bool:
        """Return whether records from `fetch_offset` on may be granted, if the log has any (rule Q26)."""
        if self.start < 0 or any(write.begins for write in self._writes.values()):
            return False
        return self.window < limits.window or self.fetch_offset() < self.next_new

    def frozen(self, now: float = 0) -> tuple[object, ...]:
        """Return the whole state as a hashable value, in which the expiry times of locks are relative to
        `now`.
        """
        flight = self._flight
        runs = tuple(
            (
                *run.values()[:5],
                run.lock and run.lock._replace(until=run.lock.until - now),
                run.write,
                run.target,
            )
            for run in flight.runs
        )
        writes = tuple(
            (token, write.stands, write.begins, tuple(write.ranges), tuple(write.letters))
            for token, write in sorted(self._writes.items())
        )
        return flight.start, flight.next_new, flight.complete, runs, writes

    # --- fetches ---------------------------------------------------------------------------------

    def begin_at(self, offset: int) -> Outcome:
        """Set the start to `offset`, which the caller has found by `share.auto.offset.reset`; return the
        write that makes it durable. No record is granted until that write has succeeded (rule Q13). If the
        write fails, the start is unknown again.
        """
        assert self.start < 0, "the start is known"
        self._flight = InFlight(offset)
        write = self._new_write(begins=True)
        self._writes[write.token] = write
        return Outcome(write.of(offset, 0))

    def grant(
        self,
        member: str,
        mode: int,
        want: int,
        piece: int,
        batches: Sequence[ReadBatch],
        read_from: int,
        read_end: int,
        aborted: Sequence[OffsetRange],
        now: float,
        limits: Limits,
    ) -> Grant:
        """Acquire records of `batches` for a member, and return the grant. The batches were read from the
        fetch offset `read_from` to before `read_end`. Offsets of this range that no batch has are no longer
        in the log, and are archived.

        `mode`, `want` and `piece` are as in `Acquisition` (rule Q19). `aborted` has the offsets of aborted
        transactions, which are archived without a write (rule Q44); it is empty if the group reads
        uncommitted records too.
        """
        self._tokens += 1
        token = self._tokens
        if want <= 0 or not self.may_grant(limits):
            return Grant(token, ())
        lock = Lock(member, now + limits.lock_ms, token)
        way = Acquisition(self._flight, lock, mode, want, piece, limits)
        acquired = way.over(batches, read_from, read_end, aborted)
        return Grant(token, acquired, self._flight.advance())

    def ungrant(self, token: int) -> Outcome:
        """Undo a grant, because the answer with its records could not be sent: the offsets that the grant
        still locks become Available with the delivery count that they had before the grant (rule Q94).
        """
        runs = [run for run in self._flight.runs if run.lock and run.lock.grant == token and not run.write]
        for run in runs:
            self._flight.unlock(run)
            self._flight.become(run, AVAILABLE)
            run.count -= 1
        self._join(runs)
        return Outcome(wakes=bool(runs))

    # --- releases of locks -----------------------------------------------------------------------

    def acknowledge(self, member: str, batches: Sequence[AckBatch], now: float, limits: Limits) -> Outcome:
        """Apply a member's acknowledgements. If an offset is refused, only the renewals before it are applied
        (rule Q31). A RENEW takes effect at once, and needs no write. Acknowledgements of offsets below the
        start have no effect (rules Q29, Q32). All other acknowledgements take effect when the returned write
        has succeeded.

        Raises InvalidRequestError for batches that are out of order or have invalid types; nothing is applied
        then. Raises InvalidRequestError for offsets after the last offset in flight, InvalidRecordStateError
        for offsets that the member has not acquired, and the other errors of `collect`.
        """
        check_form(batches)
        ended: list[AckStep] = []
        renewed: list[AckStep] = []
        try:
            collect(self._flight, member, batches, limits.may_renew, ended, renewed)
        finally:
            if renewed:
                self._renew(Lock(member, now + limits.lock_ms, 0), renewed)
        if not ended:
            return NOTHING
        return self._under_way(self._begun_with(ended, limits))

    def release(self, member: str, now: float, limits: Limits) -> Outcome:
        """Release all records of a member whose session was closed (rule Q35)."""
        locked = self.acquired_by(member)
        if not locked:
            return NOTHING
        given_back = [AckStep(first, last, AcknowledgeType.RELEASE) for first, last, _ in locked]
        return self._under_way(self._begun_with(given_back, limits))

    def expire(self, now: float, limits: Limits) -> Outcome:
        """Release all locks that have expired at `now` (rule Q36). Other members may acquire the offsets even
        before the returned write has completed.
        """
        deadline = self.deadline()
        if deadline is None or deadline > now:
            return NOTHING
        locked = (run for run in self._flight.runs if run.lock is not None and not run.write)
        over = [run for run in locked if run.lock is not None and run.lock.until <= now]
        for run in over:
            self._flight.unlock(run)
        return self._run_out(over, limits) if over else NOTHING

    def move_log_start(self, offset: int) -> Outcome:
        """Move the start to the log's new start, `offset` (rule Q41). Records below it are no longer granted.
        Acknowledgements of these records succeed without effect, and the end of a pending write of these
        records changes nothing in memory.
        """
        if not 0 <= self.start < offset:
            return NOTHING
        self._flight.move_start(offset)
        self._flight.advance()
        return Outcome(wakes=True)

    # --- dead letters ----------------------------------------------------------------------------

    def dead_lettered(self, first: int, last: int) -> Outcome:
        """Archive offsets whose dead letters were written, or can never be written (rule Q70). If the offsets
        are below the start, the returned write has the start, and no batch for the offsets.
        """
        write = self._new_write(stands=True)
        parts = [
            run for run in self._flight.runs.cut(first, last) if run.state is ARCHIVING and not run.write
        ]
        for run in parts:
            self._change(write, run, ARCHIVED, Cause.REJECTED)
        self._join(parts)
        return self._under_way(write) if parts or first < self.start else NOTHING

    def redo_dead_letters(self, limits: Limits = Limits()) -> tuple[DeadLetter, ...]:  # noqa: B008 - immutable
        """Return the dead letters of the offsets that are ARCHIVING in a loaded state, because these dead
        letters may not have been appended (rule Q62). The cause of each is guessed from the delivery count.
        """
        runs = (run for run in self._flight.runs if run.state is ARCHIVING and not run.write)
        causes = (Cause.REJECTED, Cause.LIMIT_EXCEEDED)
        return tuple(
            DeadLetter(run.first, run.last, run.count, causes[run.count >= limits.deliveries]) for run in runs
        )

    # --- writes ----------------------------------------------------------------------------------

    def written(self, token: int, ok: bool, now: float, limits: Limits) -> Outcome:
        """Handle the end of the write with this token, which succeeded if `ok`. After a failed write, its
        records are still locked by the member that acquired them. If a lock expired during the failed write,
        the records are released, which needs another write (rule Q34). Raises KeyError for an unknown token.
        """
        write = self._writes.pop(token)
        if write.begins:
            return self._begun(ok)
        over: list[StateRun] = []
        freed = False
        for first, last in write.ranges:
            for run in self._flight.runs.overlapping(first, last):
                if run.write != token:
                    continue
                if ok or write.stands:
                    assert run.target is not None
                    self._flight.become(run, run.target)
                    freed |= run.state is AVAILABLE
                elif self._is_over(run, now):
                    over.append(run)
        further, wakes, _ = self._run_out(over, limits) if over else NOTHING
        for first, last in write.ranges:
            self._flight.runs.join(first, last)
        letters = tuple(write.letters) if ok or write.stands else ()
        return _outcome((further, self._advance(limits) or freed or wakes, letters))

    def _begun(self, ok: bool) -> Outcome:
        if not ok:
            self._flight = InFlight(-1)
        return Outcome(wakes=ok)

    def _is_over(self, run: StateRun, now: float) -> bool:
        """Undo the transition of a run after a failed write; return whether the run's lock has expired."""
        self._flight.take_back(run)
        lock = run.lock
        assert lock is not None
        if lock.until > now:
            self._flight.locks.add(lock.until, run.last - run.first + 1)
        return lock.until <= now

    def _new_write(self, stands: bool = False, begins: bool = False) -> PendingWrite:
        self._tokens += 1
        return PendingWrite(self._tokens, stands, begins)

    def _under_way(self, write: PendingWrite) -> Outcome:
        self._writes[write.token] = write
        return _outcome((write.of(self._flight.start, self._flight.complete), False, ()))

    # --- changes of runs -------------------------------------------------------------------------

    def _renew(self, lock: Lock, renewed: Iterable[AckStep]) -> None:
        for first, last, _ in renewed:
            for run in self._flight.runs.cut(first, last):
                self._flight.lock(run, lock)
            self._flight.runs.join(first, last)

    def _begun_with(self, ended: Iterable[AckStep], limits: Limits) -> PendingWrite:
        """Begin the transitions of acknowledged or released offsets, and return the write that completes
        them.
        """
        self._tokens += 1
        write, runs = PendingWrite(self._tokens), self._flight.runs
        for first, last, kind in ended:
            cause = Cause.REJECTED if kind == REJECT else Cause.LIMIT_EXCEEDED
            for run in runs.cut(first, last):
                self._change(write, run, _target(kind, run, limits), cause)
            runs.join(first, last)
        return write

    def _change(self, write: PendingWrite, run: StateRun, state: RecordState, cause: Cause) -> None:
        write.add(run.first, run.last, state, run.count, cause)
        write.transition(run.first, run.last)
        self._flight.begin(run, state, write.token)

    def _run_out(self, over: Sequence[StateRun], limits: Limits) -> Outcome:
        """Release runs whose locks have expired, in memory before the write. The outcome has the write, and
        whether to wake fetches.
        """
        write = self._new_write(stands=True)
        freed = False
        for run in over:
            state = _given_back(run.count, limits)
            write.add(run.first, run.last, state, run.count, Cause.LIMIT_EXCEEDED)
            self._flight.become(run, state)
            freed |= state is AVAILABLE
        self._join(over)
        outcome = self._under_way(write)
        return outcome._replace(wakes=self._advance(limits) or freed)

    def _advance(self, limits: Limits) -> bool:
        """Move the start as far as possible (rule Q28). Return True if it moved, and the offsets in flight
        had reached their limit before (rule Q26).
        """
        flight = self._flight
        is_full = flight.next_new - flight.start >= limits.window
        return flight.advance() and is_full

    def _join(self, runs: Sequence[StateRun]) -> None:
        if runs:
            self._flight.runs.join(runs[0].first, runs[-1].last)


def _target(kind: int, run: StateRun, limits: Limits) -> RecordState:
    """Return the new state of an acknowledged record (rule Q32). A GAP never becomes a dead letter."""
    if kind == AcknowledgeType.ACCEPT:
        return RecordState.ACKNOWLEDGED
    if kind == AcknowledgeType.RELEASE:
        return _given_back(run.count, limits)
    return ARCHIVING if kind == REJECT and limits.dead_letters else ARCHIVED


def _given_back(count: int, limits: Limits) -> RecordState:
    """Return the new state of a released record (rule Q12)."""
    if count < limits.deliveries:
        return AVAILABLE
    return ARCHIVING if limits.dead_letters else ARCHIVED
