"""How the durable states of a share partition are combined: a snapshot, and the deltas after it (Kafka:
PersisterStateBatchCombiner, ShareCoordinatorShard, ShareCoordinatorOffsetsManager).

Nothing is on disk: what is here is pure. Threads: the functions any; a `Fold` and a `PrunePoint` belong to
one, which holds the lock of the state partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

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


# --- batches ---------------------------------------------------------------------------------------


def combine(stored: Iterable[StateBatch], new: Iterable[StateBatch], start: int) -> tuple[StateBatch, ...]:
    """Return the batches from offset `start` on, disjoint and in order. Of batches that overlap the one with
    the higher count wins, then the one with the higher state; neighbours with both equal are joined. So the
    result does not depend on the order of writes (Kafka: PersisterStateBatchCombiner).
    """
    kept = [_cut(each, start) for each in (*stored, *new) if each.last >= start]
    if not _is_combined(kept):
        kept.sort()
        kept = _winners(kept)
    return tuple(kept)


def _cut(batch: StateBatch, start: int) -> StateBatch:
    return batch if batch.first >= start else batch._replace(first=start)


def _is_combined(batches: Sequence[StateBatch]) -> bool:
    before = None
    for each in batches:
        if each.last < each.first or (before is not None and not _may_follow(before, each)):
            return False
        before = each
    return True


def _may_follow(before: StateBatch, each: StateBatch) -> bool:
    """Return whether two batches are disjoint, in order, and not to be joined."""
    return each.first > before.last + 1 or (each.first == before.last + 1 and each[2:] != before[2:])


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
    start, complete = max((stored.start, stored.complete), (delta.start, delta.complete))
    leader_epoch = max(stored.leader_epoch, delta.leader_epoch)
    return stored._replace(start=start, complete=complete, leader_epoch=leader_epoch)


class Fold:
    """The state that a snapshot and the deltas after it give. Batches of deltas are kept as they come, and
    combined when the state is asked for, or they have become many.
    """

    __slots__ = ("_changed", "_pending", "_state")

    def __init__(self, snapshot: Durable | None = None) -> None:
        self._state, self._changed = snapshot, False
        self._pending: list[StateBatch] = []

    @property
    def head(self) -> Durable | None:
        """Return the state with outdated batches; None before the first record."""
        return self._state

    @property
    def state(self) -> Durable | None:
        """Return the state; None before the first record."""
        if self._changed and self._state is not None:
            batches = combine(self._state.batches, self._pending, self._state.start)
            self._state = self._state._replace(batches=batches)
            self._changed = False
            self._pending.clear()
        return self._state

    def snapshot(self, snapshot: Durable) -> None:
        """Apply a ShareSnapshot, which replaces what came before."""
        self._pending.clear()
        self._state, self._changed = snapshot, False

    def update(self, delta: StateDelta) -> None:
        """Apply a ShareUpdate."""
        self._state, self._changed = changed(self._state, delta), True
        self._pending += delta.batches
        if len(self._pending) > _MOST_PENDING + len(self._state.batches):
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
