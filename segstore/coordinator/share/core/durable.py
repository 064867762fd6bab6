"""How the durable states of a share partition are combined: a snapshot, and the deltas after it (Kafka:
PersisterStateBatchCombiner, ShareCoordinatorShard, ShareCoordinatorOffsetsManager).

Nothing is on disk: what is here is pure. Threads: the functions any; a `Fold` and a `PrunePoint` belong to
one, which holds the lock of the state partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Any, Generic, NamedTuple, TypeVar

from segstore.coordinator.share.core.values import Durable, StateBatch

K = TypeVar("K")

_MOST_PENDING = 1024
"""Batches of deltas that a fold keeps uncombined, or as many as its snapshot has."""


class StateDelta(NamedTuple):
    """The content of a ShareUpdate record: what has changed since the snapshot `snapshot_epoch`. `start` -1:
    as before.
    """

    snapshot_epoch: int
    leader_epoch: int
    start: int
    complete: int
    batches: tuple[StateBatch, ...] = ()


_durable: Callable[[tuple[Any, ...]], Durable] = partial(tuple.__new__, Durable)  # a call of C


# --- batches ---------------------------------------------------------------------------------------


def combine(stored: Iterable[StateBatch], new: Iterable[StateBatch], start: int) -> tuple[StateBatch, ...]:
    """Return the batches from offset `start` on, disjoint and in order. Of batches that overlap the one with
    the higher count wins, then the one with the higher state; neighbours with both equal are joined. So the
    result does not depend on the order of writes (Kafka: PersisterStateBatchCombiner).
    """
    kept: list[StateBatch] = []
    are_combined, end, before = True, start - 1, None  # the batches that are kept; `end` is that of `before`
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
    """Return disjoint batches, where `batches` may overlap; both are in order of their first offsets."""
    runs: list[StateBatch] = []
    reaching: list[tuple[int, int, int]] = []  # batches that reach the offset `at`, the strongest first
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
            # A batch that begins within this one may be stronger.
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
    """Return the state after a ShareUpdate: its batches are combined with those that are stored. Without a
    snapshot it is taken as it is.
    """
    after = changed(stored, delta)
    before = () if stored is None else stored.batches
    return after._replace(batches=combine(before, delta.batches, after.start))


def changed(stored: Durable | None, delta: StateDelta) -> Durable:
    """Return the state after a delta but for its batches. The count belongs to the start: of two counts for
    one start the larger is the newer, since writes may overtake each other.
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
    """The state that a snapshot and the deltas after it give. Batches of deltas are kept as they come, and
    combined when the state is asked for, or they have become many. `head` is the state with outdated
    batches, None before the first record.
    """

    __slots__ = ("_changed", "_pending", "head")

    def __init__(self, snapshot: Durable | None = None) -> None:
        self.head, self._changed = snapshot, False
        self._pending: list[StateBatch] = []

    @property
    def state(self) -> Durable | None:
        """Return the state; None before the first record."""
        if self._changed and self.head is not None:
            batches = combine(self.head.batches, self._pending, self.head.start)
            self.head = self.head._replace(batches=batches)
            self._changed = False
            self._pending.clear()
        return self.head

    def snapshot(self, snapshot: Durable) -> None:
        """Apply a ShareSnapshot, which replaces what came before."""
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
    """The offset below which a partition of the state topic needs no record: the lowest of the latest
    snapshots of all keys. Deltas don't count.
    """

    def __init__(self) -> None:
        self._snapshots: dict[K, int] = {}
        self._kept: int | None = None
        self._tombstone: int | None = None

    def snapshot(self, key: K, offset: int) -> None:
        """Note the latest snapshot of a key."""
        self._snapshots[key] = offset

    def forget(self, key: K, offset: int) -> None:
        """Note the tombstone of a key: its offset counts once, and its key no more."""
        self._snapshots.pop(key, None)
        self._tombstone = offset

    def keep(self, offset: int) -> None:
        """Note a record that stays whatever comes after it."""
        self._kept = offset if self._kept is None else min(self._kept, offset)

    @property
    def offset(self) -> int | None:
        """Return the offset; None if nothing is known that could be pruned."""
        lowest = min(self._snapshots.values(), default=self._tombstone)
        if lowest is None or self._kept is None:
            return lowest
        return min(lowest, self._kept)
