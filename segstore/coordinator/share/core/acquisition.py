"""`Acquisition`: grants to a member offsets that the member's fetch has read (Kafka: SharePartition.acquire).

Owns nothing on disk. Threads: one at a time, under the share partition's lock.
"""

from __future__ import annotations

from collections.abc import Sequence

from segstore.coordinator.share.core.in_flight import ACQUIRED, AVAILABLE, InFlight
from segstore.coordinator.share.core.runs import Lock, StateRun
from segstore.coordinator.share.core.throttle import allowance, is_alone, threshold
from segstore.coordinator.share.core.values import (
    Acquired,
    AcquireMode,
    Limits,
    OffsetRange,
    ReadBatch,
)


class Acquisition:
    """One grant of offsets to a member (rules Q18 to Q26, Q42 to Q44 of docs/queue-rules.md).

    `want` is the number of offsets to grant. In mode RECORD_LIMIT the grant never exceeds `want`; in mode
    BATCH_OPTIMIZED it may exceed `want` to include the whole of its last record batch. New offsets are
    grouped into pieces (Kafka: InFlightBatch). A piece ends at the end of the first record batch with which
    it has at least `piece` offsets, or earlier, for example at a gap in the offsets.
    """

    __slots__ = (
        *("_budget", "_end", "_flight", "_limits", "_lock", "_open", "_piece", "_size"),
        *("_strict", "_taken", "_want"),
    )

    def __init__(
        self, flight: InFlight, lock: Lock, mode: int, want: int, piece: int, limits: Limits
    ) -> None:
        self._flight, self._lock, self._limits = flight, lock, limits
        self._strict, self._want, self._size = mode == AcquireMode.RECORD_LIMIT, want, piece
        self._taken = 0
        # `_open` is the run of granted new offsets to which the next new offsets are added.
        self._open: StateRun | None = None
        # `_piece` is the piece of the run that `_take_again` has got in its last call.
        self._piece: OffsetRange | None = None
        # `_budget` is the number of records of `_piece` that may still be granted; None means no limit.
        self._budget: int | None = None

    def over(
        self, batches: Sequence[ReadBatch], begin: int, end: int, aborted: Sequence[OffsetRange]
    ) -> tuple[Acquired, ...]:
        """Grant offsets of `batches`, which were read from offset `begin` to before offset `end`. Return the
        acquired offsets as disjoint runs.
        """
        flight, self._end = self._flight, end
        at = begin = max(begin, flight.start)
        for batch in batches:
            first = max(batch.base, at)
            if batch.last < first:
                continue
            last = self._reach(batch.last)
            if self._taken >= self._want or last < first:
                break
            self._vanished(at, first - 1)
            self._archive(aborted, first, last)
            if not self._take(first, last) or last < batch.last:
                break
            self._end_of_batch()
            at = last + 1
        else:
            self._vanished(at, end - 1)
        self._close()
        flight.runs.join(begin, flight.next_new)
        runs = flight.runs.overlapping(begin, flight.next_new)
        return tuple(Acquired(run.first, run.last, run.count) for run in runs if run.lock is self._lock)

    def _reach(self, last: int) -> int:
        """Return the offset up to which a batch that ends at `last` may be granted: `last`, but at most the
        last offset in flight if the offsets in flight have reached their limit (rule Q26).
        """
        flight = self._flight
        has_room = flight.next_new - flight.start < self._limits.window
        return last if has_room else min(last, flight.next_new - 1)

    def _vanished(self, first: int, last: int) -> None:
        """Archive the offsets from `first` to `last` that are Available or in no run, because no batch of the
        log has them any more (rule Q22).
        """
        if first <= last:
            self._close()
            self._flight.archive_unread(first, last)

    def _archive(self, aborted: Sequence[OffsetRange], first: int, last: int) -> None:
        """Archive the offsets from `first` to `last` that belong to aborted transactions, and are Available
        or in no run (rule Q44).
        """
        for each in aborted:
            if each.first <= last and each.last >= first:
                self._close()
                self._flight.archive_unread(max(first, each.first), min(last, each.last))

    def _take(self, first: int, last: int) -> bool:
        """Grant the offsets of one batch from `first` to `last`, as far as the limits allow. Return whether
        the grant may continue after `last`.
        """
        for begin, end, run in self._flight.segments(first, last):
            if run is None:
                goes_on = self._take_new(begin, end)
            elif run.state is AVAILABLE:
                goes_on = self._take_again(begin, end, run)
            else:
                self._close()
                goes_on = True
            if not goes_on:
                return False
        return True

    # --- new offsets -----------------------------------------------------------------------------

    def _take_new(self, first: int, last: int) -> bool:
        count = min(last - first + 1, self._most_new(first)) if self._strict else last - first + 1
        if self._budget is not None or count <= 0:
            return False
        end = first + count - 1
        self._extend(first, end)
        if end == last:
            return True
        assert self._open is not None
        piece = OffsetRange(self._open.first, last)
        self._close(piece)
        self._flight.add(StateRun(end + 1, last, AVAILABLE, 0, piece))
        return False

    def _most_new(self, first: int) -> int:
        remaining = self._want - self._taken
        flight = self._flight
        in_window = first < flight.next_new
        return (
            remaining if in_window else min(remaining, self._limits.window - (flight.next_new - flight.start))
        )

    def _extend(self, first: int, last: int) -> None:
        if self._open is not None and self._open.last == first - 1:
            self._open.last = last
            self._flight.next_new = max(self._flight.next_new, last + 1)
        else:
            self._close()
            self._open = StateRun(first, last, ACQUIRED, 1, lock=self._lock)
            self._flight.add(self._open)
        self._taken += last - first + 1

    def _end_of_batch(self) -> None:
        """Close the open piece at the end of a record batch if it has at least `_size` offsets (rule Q19)."""
        if self._open is not None and self._open.last - self._open.first + 1 >= self._size:
            self._close()

    def _close(self, piece: OffsetRange | None = None) -> None:
        run, self._open = self._open, None
        if run is not None:
            run.piece = piece or OffsetRange(run.first, run.last)
            self._flight.locks.add(self._lock.until, run.last - run.first + 1)

    # --- offsets in flight -----------------------------------------------------------------------

    def _take_again(self, first: int, last: int, run: StateRun) -> bool:
        self._close()
        if run.piece != self._piece:
            if self._budget is not None:
                return False
            self._piece, self._budget = run.piece, self._throttled(first, run.piece)
            if self._budget is not None and self._taken:
                return False
        count, alone = min(last - first + 1, self._most_of(run)), self._is_alone(run)
        if count <= 0:
            return False
        end = first + count - 1
        for part in self._flight.runs.cut(first, end):
            self._flight.acquire(part, self._lock)
        self._taken += count
        if self._budget is not None:
            self._budget -= count
        return end == last and not alone

    def _most_of(self, run: StateRun) -> int:
        """Return the number of offsets of `run` that may be granted."""
        most = self._want - self._taken if self._strict else run.last - run.first + 1
        if self._budget is not None:
            most = min(most, self._budget)
        return min(most, 1 - self._taken) if self._is_alone(run) else most

    def _is_alone(self, run: StateRun) -> bool:
        return is_alone(run.count, self._limits.deliveries)

    def _throttled(self, first: int, piece: OffsetRange) -> int | None:
        """Return the number of records of a piece that may be granted together; None, for no limit, if no
        record of the piece from offset `first` on is near the delivery limit (rule Q24).
        """
        limit = self._limits.deliveries
        low = threshold(limit)
        for run in self._flight.runs.from_offset(first):
            if run.first > piece.last or run.first >= self._end:
                return None
            if run.state is AVAILABLE and run.count >= low and run.piece == piece:
                return allowance(piece.last - piece.first + 1, run.count, limit)
        return None
