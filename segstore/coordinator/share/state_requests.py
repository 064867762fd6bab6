"""What is to be written to `__share_group_state`: each request says by which record, or why it is refused
(Kafka: ShareCoordinatorShard).

Nothing is on disk. Threads: a request belongs to the thread that made it, and to the one that writes it for
this thread, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import NamedTuple

from segstore.coordinator.share.core.durable import StateDelta, apply_update, combine
from segstore.coordinator.share.core.values import Durable, RecordState, StateBatch
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.state_table import ShareState, StateChange
from segstore.errors import (
    FencedLeaderEpochError,
    FencedStateEpochError,
    InvalidRequestError,
    SegstoreError,
)

UNKNOWN = -1
"""Stands for an epoch that is not compared, a start that does not change, and a count that is not known."""
_NUMBERS = ("state epoch", "leader epoch", "start", "complete count")
DURABLE_STATES = frozenset(RecordState) - {RecordState.ACQUIRED}


class StateTerms(NamedTuple):
    """What holds for all requests of an append: its time in ms since the epoch, after how many updates a
    snapshot is due, and a function that raises UnknownTopicOrPartitionError for a share partition whose topic
    is gone.
    """

    now: int
    updates_per_snapshot: int
    check_source: Callable[[ShareKey], None]


class Update(NamedTuple):
    """A change of a share partition's state (Kafka: WriteShareGroupState). `start` is the start offset before
    the change, -1 if it is not known, `complete` the count after it. `lead`: a share partition's leader makes
    its epoch known, and nothing is written if the state has this epoch.
    """

    state_epoch: int
    leader_epoch: int
    start: int = UNKNOWN
    complete: int = UNKNOWN
    batches: Sequence[StateBatch] = ()
    lead: bool = False


class StateRequest:
    """A record that is wanted of a share partition. `is_done`: it was written, needs no record, or has the
    `error` why not.
    """

    __slots__ = ("error", "is_done", "key")

    def __init__(self, key: ShareKey) -> None:
        self.key, self.is_done = key, False
        self.error: SegstoreError | None = None

    def end(self, error: SegstoreError | None = None) -> None:
        """Note the outcome."""
        self.error, self.is_done = error, True

    def change(self, held: ShareState | None, ahead: int, terms: StateTerms) -> StateChange | None:
        """Return the record to write, None if none is needed. `ahead`: how many updates of the share
        partition stand before it in the same append. Raises SegstoreError: the request is refused.
        """
        raise NotImplementedError

    def may_follow(self, other: StateChange, held: ShareState | None, ahead: int, terms: StateTerms) -> bool:
        """Return whether this request may be in one append with another change of its share partition."""
        return False


class UpdateRequest(StateRequest):
    """A ShareUpdate, or a ShareSnapshot if one is due."""

    __slots__ = ("update",)

    def __init__(self, key: ShareKey, update: Update) -> None:
        super().__init__(key)
        self.update = update

    def change(self, held: ShareState | None, ahead: int, terms: StateTerms) -> StateChange | None:
        state = _initialised(self.key, held)
        update = self.update
        _check_numbers(self.key, update)
        _check_state_epoch(self.key, state, update.state_epoch)
        if UNKNOWN != update.leader_epoch < state.leader_epoch:
            raise FencedLeaderEpochError(
                f"share partition {self.key}: leader epoch {update.leader_epoch} is below "
                f"{state.leader_epoch}, which is known"
            )
        terms.check_source(self.key)
        if update.lead and update.leader_epoch in (UNKNOWN, state.leader_epoch) and not update.batches:
            return None
        batches = combine((), update.batches, update.start)
        delta = StateDelta(state.snapshot_epoch, update.leader_epoch, update.start, update.complete, batches)
        assert held is not None
        if held.updates + ahead < terms.updates_per_snapshot:
            return StateChange(self.key, delta=delta)
        whole = apply_update(held.fold.state, delta)
        return StateChange(self.key, _next(whole, terms.now)._replace(created_ms=terms.now))

    def may_follow(self, other: StateChange, held: ShareState | None, ahead: int, terms: StateTerms) -> bool:
        """An update may follow others of the same leader, unless a snapshot is due, which needs them all."""
        if held is None or other.delta is None or other.delta.leader_epoch != self.update.leader_epoch:
            return False
        return held.updates + ahead < terms.updates_per_snapshot


class InitialiseRequest(StateRequest):
    """The first snapshot of a share partition, or one with which all begins anew."""

    __slots__ = ("start", "state_epoch")

    def __init__(self, key: ShareKey, state_epoch: int, start: int) -> None:
        super().__init__(key)
        self.state_epoch, self.start = state_epoch, start

    def change(self, held: ShareState | None, ahead: int, terms: StateTerms) -> StateChange | None:
        state = None if held is None else held.fold.head
        _check_least(self.key, (("state epoch", self.state_epoch, 0), ("start", self.start, UNKNOWN)))
        if state is not None:
            _check_state_epoch(self.key, state, self.state_epoch)
        terms.check_source(self.key)
        epoch = 0 if state is None else state.snapshot_epoch + 1
        complete = UNKNOWN if self.start == UNKNOWN else 0
        new = Durable(epoch, self.state_epoch, 0, self.start, complete, (), terms.now, terms.now)
        return StateChange(self.key, new)


class RaiseRequest(StateRequest):
    """A snapshot with a higher state epoch, whose start may be lower than that of the state."""

    __slots__ = ("state", "state_epoch")

    def __init__(self, key: ShareKey, state_epoch: int, state: Durable) -> None:
        super().__init__(key)
        self.state_epoch, self.state = state_epoch, state

    def change(self, held: ShareState | None, ahead: int, terms: StateTerms) -> StateChange | None:
        known, new = _initialised(self.key, held), self.state
        _check_state_epoch(self.key, known, self.state_epoch)
        _check_numbers(self.key, Update(self.state_epoch, new.leader_epoch, *new[3:6]))
        snapshot = new._replace(
            snapshot_epoch=known.snapshot_epoch,
            state_epoch=self.state_epoch,
            leader_epoch=max(known.leader_epoch, new.leader_epoch),
            batches=combine((), new.batches, new.start),
            created_ms=terms.now,
        )
        return StateChange(self.key, _next(snapshot, terms.now))


class ColdRequest(StateRequest):
    """A snapshot as the last one, unless that was written after `before` (ms since the epoch)."""

    __slots__ = ("before",)

    def __init__(self, key: ShareKey, before: int) -> None:
        super().__init__(key)
        self.before = before

    def change(self, held: ShareState | None, ahead: int, terms: StateTerms) -> StateChange | None:
        state = None if held is None else held.fold.state
        if state is None or state.written_ms > self.before:
            return None
        return StateChange(self.key, _next(state, terms.now))


class TombstoneRequest(StateRequest):
    """The end of a share partition's state."""

    __slots__ = ()

    def change(self, held: ShareState | None, ahead: int, terms: StateTerms) -> StateChange | None:
        return None if held is None else StateChange(self.key)


def _next(state: Durable, now: int) -> Durable:
    return state._replace(snapshot_epoch=state.snapshot_epoch + 1, written_ms=now)


def _initialised(key: ShareKey, held: ShareState | None) -> Durable:
    state = None if held is None else held.fold.head
    if state is None:
        raise InvalidRequestError(f"share partition {key} is not initialised")
    return state


def _check_state_epoch(key: ShareKey, state: Durable, epoch: int) -> None:
    if UNKNOWN != epoch < state.state_epoch:
        raise FencedStateEpochError(
            f"share partition {key}: state epoch {epoch} is below {state.state_epoch}, which is known"
        )


def _check_numbers(key: ShareKey, update: Update) -> None:
    """Raise InvalidRequestError for numbers that no state has."""
    _check_least(key, zip(_NUMBERS, update[:4], repeat(UNKNOWN), strict=False))
    for batch in update.batches:
        first, last, state, count = batch
        if not 0 <= first <= last or state not in DURABLE_STATES or count < 0:
            raise InvalidRequestError(f"share partition {key}: {tuple(batch)} is no durable state of offsets")


def _check_least(key: ShareKey, numbers: Iterable[tuple[str, int, int]]) -> None:
    for name, value, least in numbers:
        if value < least:
            raise InvalidRequestError(f"share partition {key}: {name} {value}: must be at least {least}")
