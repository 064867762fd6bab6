"""Combines the durable states of a share partition: a snapshot, and the updates after it (Kafka:
PersisterStateBatchCombiner, ShareCoordinatorShard, ShareCoordinatorOffsetsManager).

Nothing is on disk; all functions are pure. Threads: any for the functions; a `Fold` and a `PrunePoint` belong
to one thread, which holds the lock of the state partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Any, Generic, NamedTuple, TypeVar

from segstore.coordinator.share.core.values import Durable, StateBatch

K = TypeVar("K")

_MOST_PENDING = 1024
"""The number by which a fold's uncombined batches may exceed its combined batches."""


class StateDelta(NamedTuple):
    """The content of a ShareUpdate record: the changes since the snapshot `snapshot_epoch`. `start` is -1 if
    it has not changed.
    """

    snapshot_epoch: int
    leader_epoch: int
    start: int
    complete: int
    batches: tuple[StateBatch, ...] = ()


# `tuple.__new__` is C code, and so faster than the class's own `__new__` in Python
_durable: Callable[[tuple[Any, ...]], Durable] = partial(tuple.__new__, Durable)


# --- batches ---------------------------------------------------------------------------------------


def combine(stored: Iterable[StateBatch], new: Iterable[StateBatch], start: int) -> tuple[StateBatch, ...]:
    """Return all batches, from offset `start` on, as disjoint batches in order (Kafka:
    PersisterStateBatchCombiner). An offset in several batches gets the larger delivery count, and for equal
    counts the larger state, whichever was written last. Equal neighbours are joined.
    """
    kept: list[StateBatch] = []
    # `end` is the last offset of the batch kept last, `before` its state and count
    are_combined, end, before = True, start - 1, None
    for batch in (*stored, *new):
        first, last, *rest = batch
        if last < start:
            continue
        if first < start:
            first = start
            batch = StateBatch(first, last, *rest)
        if last < first or first <= end or (first == end + 1 and rest == before):
            are_combined = False
        kept.append(batch)
        end, before = last, rest
    if not are_combined:
        kept.sort()
        kept = _winners(kept)
    return tuple(kept)


def _winners(batches: Sequence[StateBatch]) -> list[StateBatch]:
    """Return disjoint batches from overlapping ones; both lists are in the order of first offsets."""
    runs: list[StateBatch] = []
    # a heap of the batches that contain offset `at`, the winner first
    reaching: list[tuple[int, int, int]] = []
    at, n, i = -1, len(batches), 0
    while reaching or i < n:
        if not reaching:
            at = max(at, batches[i].first)
        while i < n and batches[i].first <= at:
            _, last, state, count = batches[i]
            heappush(reaching, (-count, -state, last))
            i += 1
        while reaching and reaching[0][2] < at:
            heappop(reaching)
        if reaching:
            count, state, last = reaching[0]
            # A batch that begins within this one may win over it.
            end = last if i == n else min(last, batches[i].first - 1)
            _add(runs, StateBatch(at, end, -state, -count))
            at = end + 1
    return runs


def _add(runs: list[StateBatch], run: StateBatch) -> None:
    before = runs[-1] if runs else None
    if before is not None and before.last + 1 == run.first and before[2:] == run[2:]:
        runs[-1] = before._replace(last=run.last)
    else:
        runs.append(run)


# --- records ---------------------------------------------------------------------------------------


def apply_update(stored: Durable | None, delta: StateDelta) -> Durable:
    """Return the state after a ShareUpdate, with the batches of `stored` and `delta` combined. If `stored` is
    None, the update alone is the state.
    """
    after = changed(stored, delta)
    before = () if stored is None else stored.batches
    return after._replace(batches=combine(before, delta.batches, after.start))


def changed(stored: Durable | None, delta: StateDelta) -> Durable:
    """Return the state after a delta, still with the batches of `stored`. Start and count are those
    of `delta` if `delta` has the larger start, or an equal start and the larger count, else those of
    `stored`, because an older delta may be applied after a newer one.
    """
    if stored is None:
        return Durable(delta.snapshot_epoch, 0, delta.leader_epoch, delta.start, delta.complete)
    snapshot_epoch, state_epoch, leader_epoch, start, complete, batches, created_ms, written_ms = stored
    _, new_epoch, new_start, new_complete, _ = delta
    if new_epoch > leader_epoch:
        leader_epoch = new_epoch
    if (new_start, new_complete) > (start, complete):
        start, complete = new_start, new_complete
    epochs = snapshot_epoch, state_epoch, leader_epoch
    return _durable((*epochs, start, complete, batches, created_ms, written_ms))


class Fold:
    """The state of a snapshot and the updates after it. The batches of updates are combined with the
    snapshot's batches only when `state` is read, or when there are many. `head` is the state with the batches
    of the last combination, None before the first record.
    """

    __slots__ = ("_changed", "_pending", "head")

    def __init__(self, snapshot: Durable | None = None) -> None:
        self.head, self._changed = snapshot, False
        self._pending: list[StateBatch] = []

    @property
    def state(self) -> Durable | None:
        """Return the state with combined batches; None before the first record."""
        if self._changed and self.head is not None:
            batches = combine(self.head.batches, self._pending, self.head.start)
            self.head = self.head._replace(batches=batches)
            self._changed = False
            self._pending.clear()
        return self.head

    def snapshot(self, snapshot: Durable) -> None:
        """Apply a ShareSnapshot, which replaces the earlier state."""
        self._pending.clear()
        self.head, self._changed = snapshot, False

    def update(self, delta: StateDelta) -> None:
        """Apply a ShareUpdate."""
        self.head, self._changed = changed(self.head, delta), True
        self._pending += delta.batches
        if len(self._pending) > _MOST_PENDING + len(self.head.batches):
            _ = self.state


# --- prune -----------------------------------------------------------------------------------------


class PrunePoint(Generic[K]):
    """The offset below which records of a partition of the state topic can be deleted: the lowest offset
    among the latest snapshots of all keys. Updates don't count.
    """

    def __init__(self) -> None:
        self._snapshots: dict[K, int] = {}
        self._kept: int | None = None
        self._tombstone: int | None = None

    def snapshot(self, key: K, offset: int) -> None:
        """Set the offset of a key's latest snapshot."""
        self._snapshots[key] = offset

    def forget(self, key: K, offset: int) -> None:
        """Remove a key, whose tombstone is at `offset`. `offset` counts only if no snapshot remains."""
        self._snapshots.pop(key, None)
        self._tombstone = offset

    def keep(self, offset: int) -> None:
        """Never prune the record at `offset` and the records after it."""
        self._kept = offset if self._kept is None else min(self._kept, offset)

    @property
    def offset(self) -> int | None:
        """Return the offset below which records can be deleted; None if no record can be deleted."""
        lowest = min(self._snapshots.values(), default=self._tombstone)
        if lowest is None or self._kept is None:
            return lowest
        return min(lowest, self._kept)
