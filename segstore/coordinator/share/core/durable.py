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
    """The content of a ShareUpdate record: changes of the state since the snapshot with `snapshot_epoch`.
    `start` is -1 if the start offset has not changed.
    """

    snapshot_epoch: int
    leader_epoch: int
    start: int
    complete: int
    batches: tuple[StateBatch, ...] = ()


# Calling `tuple.__new__`, which is C code, is faster than calling the class, whose `__new__` is Python code.
_durable: Callable[[tuple[Any, ...]], Durable] = partial(tuple.__new__, Durable)


# --- batches ---------------------------------------------------------------------------------------


def combine(stored: Iterable[StateBatch], new: Iterable[StateBatch], start: int) -> tuple[StateBatch, ...]:
    """Combine two lists of batches into disjoint batches, ordered by offset, without the offsets below
    `start` (Kafka: PersisterStateBatchCombiner). If several batches have an offset, the offset gets the state
    and count of the batch with the largest delivery count; among batches with equal counts, of the batch with
    the largest state number. Adjacent batches with the same state and count are joined.
    """
    kept: list[StateBatch] = []
    # `end` is the last offset of the last batch in `kept`; `before` has the state and count of that batch.
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
    """Return disjoint batches, in which each offset has the state and count that `combine` describes.
    `batches` may overlap. Both lists are ordered by first offset.
    """
    runs: list[StateBatch] = []
    # `reaching` is a heap of the batches that contain offset `at`. The first one decides the offset's state.
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
            # The run ends before the next batch begins, because that batch may have a larger count.
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
    """Return the state after a ShareUpdate: its batches are those of `stored` and `delta`, combined. If
    `stored` is None, the state is made from `delta` alone.
    """
    after = changed(stored, delta)
    before = () if stored is None else stored.batches
    return after._replace(batches=combine(before, delta.batches, after.start))


def changed(stored: Durable | None, delta: StateDelta) -> Durable:
    """Return the state after a delta, but with the batches of `stored`. `start` and `complete` are those of
    `delta` if `delta` has the larger start, or an equal start and the larger `complete`; else they are those
    of `stored`. (An older delta may be applied after a newer delta.)
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
    """The state that results from a snapshot and the updates after it. The batches of updates are combined
    with the snapshot's batches only when `state` is read, or when there are many uncombined batches. `head`
    is the current state, except that its batches are those of the last combination; it is None before the
    first record.
    """

    __slots__ = ("_changed", "_pending", "head")

    def __init__(self, snapshot: Durable | None = None) -> None:
        self.head, self._changed = snapshot, False
        self._pending: list[StateBatch] = []

    @property
    def state(self) -> Durable | None:
        """Combine the uncombined batches, and return the state; None before the first record."""
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
    """The offset below which records of a partition of `__share_group_state` can be deleted: the lowest
    offset of any key's latest snapshot.
    """

    def __init__(self) -> None:
        self._snapshots: dict[K, int] = {}
        self._kept: int | None = None
        self._tombstone: int | None = None

    def snapshot(self, key: K, offset: int) -> None:
        """Set the offset of a key's latest snapshot."""
        self._snapshots[key] = offset

    def forget(self, key: K, offset: int) -> None:
        """Remove a key, whose tombstone is at `offset`. If no key has a snapshot any more, the records below
        `offset` can be deleted.
        """
        self._snapshots.pop(key, None)
        self._tombstone = offset

    def keep(self, offset: int) -> None:
        """Never allow the deletion of the record at `offset`, or of any record after it."""
        self._kept = offset if self._kept is None else min(self._kept, offset)

    @property
    def offset(self) -> int | None:
        """Return the offset below which records can be deleted; None if no record can be deleted."""
        lowest = min(self._snapshots.values(), default=self._tombstone)
        if lowest is None or self._kept is None:
            return lowest
        return min(lowest, self._kept)
