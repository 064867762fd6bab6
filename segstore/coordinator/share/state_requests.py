"""Requests for writes to `__share_group_state`. The `change` method of a request returns the record to write,
or raises an error if the present state forbids the write (Kafka: ShareCoordinatorShard).

Nothing is on disk. Threads: a request belongs first to the thread that made it, then to the thread that
writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from segstore.coordinator.share.core.durable import StateDelta, apply_update, changed, combine
from segstore.coordinator.share.core.values import Durable, RecordState, StateBatch
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.state_table import SharePartitionState, StateChange
from segstore.errors import (
    FencedLeaderEpochError,
    FencedStateEpochError,
    InvalidRequestError,
    SegstoreError,
)

# Calling `tuple.__new__`, which is C code, is faster than calling the class, whose `__new__` is Python code.
_change: Callable[[tuple[Any, ...]], StateChange] = partial(tuple.__new__, StateChange)
_delta: Callable[[tuple[Any, ...]], StateDelta] = partial(tuple.__new__, StateDelta)
UNKNOWN = -1
"""The value of `start` if the start offset does not change, and of a count that is not known."""
_NUMBERS = ("state epoch", "leader epoch", "start", "complete count")
_LEAST = (0, 0, UNKNOWN, UNKNOWN)
DURABLE_STATES = frozenset(RecordState) - {RecordState.ACQUIRED}


class StateTerms(NamedTuple):
    """The common inputs of all requests of one append: the time of the append in ms since the epoch, the
    number of updates after which a snapshot is due, and a function that raises
    UnknownTopicOrPartitionError for a share partition whose topic or partition does not exist.
    """

    now: int
    updates_per_snapshot: int
    check_source: Callable[[ShareKey], None]


class Ahead(NamedTuple):
    """The effect of the records of one share partition that an append already has. `updates` is the number of
    these records. `head` is the share partition's state after them, except that its batches are older. If one
    of the records is not a ShareUpdate, `head` is None: the append can have no more records of this share
    partition.
    """

    head: Durable | None
    updates: int


def ahead_of(current: SharePartitionState | None, before: Ahead | None, change: StateChange) -> Ahead:
    """Return the `Ahead` of a share partition after the append has got one more record, `change`."""
    head = _head(current, before)
    if change.delta is None or head is None:
        return Ahead(None, 0)
    return Ahead(changed(head, change.delta), 1 if before is None else before.updates + 1)


def _head(current: SharePartitionState | None, before: Ahead | None) -> Durable | None:
    if before is not None:
        return before.head
    return None if current is None else current.fold.head


class Update(NamedTuple):
    """A change of a share partition's state (Kafka: WriteShareGroupState). `start` is the start offset before
    the change, -1 if it is not known. `complete` is the number of acknowledged or archived offsets after the
    change. If `lead` is True (Kafka: ReadShareGroupState), the state's leader epoch becomes `leader_epoch`,
    and nothing is written if the state would not change. If `lead` is False, the leader epoch stays.
    """

    state_epoch: int
    leader_epoch: int
    start: int = UNKNOWN
    complete: int = UNKNOWN
    batches: Sequence[StateBatch] = ()
    lead: bool = False


class StateRequest:
    """A request to write a record of a share partition. `is_done` is True if the record was written, if no
    record is needed, or if `error` is set.
    """

    __slots__ = ("error", "is_done", "key")

    def __init__(self, key: ShareKey) -> None:
        self.key, self.is_done = key, False
        self.error: SegstoreError | None = None

    def end(self, error: SegstoreError | None = None) -> None:
        """Mark the request as done. `error` is None if it has succeeded."""
        self.error, self.is_done = error, True

    def change(
        self, current: SharePartitionState | None, ahead: Ahead | None, terms: StateTerms
    ) -> StateChange | None:
        """Return the record to write; None if no record is needed. Raises a SegstoreError if the request is
        refused.
        """
        raise NotImplementedError

    def may_follow(self, current: SharePartitionState | None, ahead: Ahead, terms: StateTerms) -> bool:
        """Return whether this request may be in the same append as the earlier requests of its share
        partition.
        """
        return False


class UpdateRequest(StateRequest):
    """A request for a ShareUpdate, or for a ShareSnapshot if one is due."""

    __slots__ = ("update",)

    def __init__(self, key: ShareKey, update: Update) -> None:
        self.key, self.update, self.is_done = key, update, False
        self.error = None

    def change(
        self, current: SharePartitionState | None, ahead: Ahead | None, terms: StateTerms
    ) -> StateChange | None:
        update = self.update
        _check_numbers(self.key, update)
        state = _head(current, ahead)
        if current is None or state is None:
            raise _not_initialised(self.key)
        known = current.leader_epoch if current.leader_epoch > state.leader_epoch else state.leader_epoch
        if update.leader_epoch < known:
            raise _led_anew(self.key, known, update.leader_epoch)
        if update.state_epoch < current.state_epoch:
            raise _begun_anew(self.key, current, update.state_epoch)
        terms.check_source(self.key)
        if update.lead and self._says_nothing(known, state):
            return None
        delta = self._delta(state)
        if current.updates + (0 if ahead is None else ahead.updates) < terms.updates_per_snapshot:
            return _change((self.key, None, delta))
        whole = apply_update(current.fold.state, delta)
        return StateChange(self.key, _next(whole, terms.now)._replace(created_ms=terms.now))

    def may_follow(self, current: SharePartitionState | None, ahead: Ahead, terms: StateTerms) -> bool:
        """Return whether this request and the earlier requests of its share partition all write ShareUpdates.
        If this request must write a snapshot, return False: the snapshot must contain the earlier updates, so
        they must be written before it is made.
        """
        return (
            current is not None
            and ahead.head is not None
            and current.updates + ahead.updates < terms.updates_per_snapshot
        )

    def _says_nothing(self, leader_epoch: int, state: Durable) -> bool:
        """Return whether this update would leave the state unchanged. Its `lead` must be True."""
        update = self.update
        return update.leader_epoch == leader_epoch and not update.batches and update.start <= state.start

    def _delta(self, state: Durable) -> StateDelta:
        """Return the content of the ShareUpdate. Its start and count are those of the resulting state."""
        update = self.update
        leader_epoch = update.leader_epoch if update.lead else state.leader_epoch
        after = changed(state, _delta((0, leader_epoch, update.start, update.complete, ())))
        batches = combine((), update.batches, after.start)
        return _delta((state.snapshot_epoch, leader_epoch, after.start, after.complete, batches))


class InitialiseRequest(StateRequest):
    """A request for a snapshot that creates a share partition's state, or replaces it by a new one."""

    __slots__ = ("start", "state_epoch")

    def __init__(self, key: ShareKey, state_epoch: int, start: int) -> None:
        super().__init__(key)
        self.state_epoch, self.start = state_epoch, start

    def change(
        self, current: SharePartitionState | None, ahead: Ahead | None, terms: StateTerms
    ) -> StateChange | None:
        state = None if current is None else current.fold.head
        _check_numbers(self.key, Update(self.state_epoch, 0, self.start))
        if current is not None:
            _check_state_epoch(self.key, current, self.state_epoch)
        terms.check_source(self.key)
        epoch = 0 if state is None else state.snapshot_epoch + 1
        complete = UNKNOWN if self.start == UNKNOWN else 0
        new = Durable(epoch, self.state_epoch, 0, self.start, complete, (), terms.now, terms.now)
        return StateChange(self.key, new)


class RaiseRequest(StateRequest):
    """A request for a snapshot with a larger state epoch, and a start that may be lower than before."""

    __slots__ = ("state", "state_epoch")

    def __init__(self, key: ShareKey, state_epoch: int, state: Durable) -> None:
        super().__init__(key)
        self.state_epoch, self.state = state_epoch, state

    def change(
        self, current: SharePartitionState | None, ahead: Ahead | None, terms: StateTerms
    ) -> StateChange | None:
        new, known = self.state, None if current is None else current.fold.head
        if current is None or known is None:
            raise _not_initialised(self.key)
        _check_state_epoch(self.key, current, self.state_epoch)
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
    """A request to write the present state as a snapshot, unless the last snapshot was written after the time
    `before`, in ms since the epoch.
    """

    __slots__ = ("before",)

    def __init__(self, key: ShareKey, before: int) -> None:
        super().__init__(key)
        self.before = before

    def change(
        self, current: SharePartitionState | None, ahead: Ahead | None, terms: StateTerms
    ) -> StateChange | None:
        state = None if current is None else current.fold.state
        if state is None or state.written_ms > self.before:
            return None
        return StateChange(self.key, _next(state, terms.now))


class TombstoneRequest(StateRequest):
    """A request for a tombstone, which deletes a share partition's state."""

    __slots__ = ()

    def change(
        self, current: SharePartitionState | None, ahead: Ahead | None, terms: StateTerms
    ) -> StateChange | None:
        return None if current is None else StateChange(self.key)


def _next(state: Durable, now: int) -> Durable:
    return state._replace(snapshot_epoch=state.snapshot_epoch + 1, written_ms=now)


def _not_initialised(key: ShareKey) -> InvalidRequestError:
    return InvalidRequestError(f"share partition {key} is not initialised")


def _check_state_epoch(key: ShareKey, current: SharePartitionState, epoch: int) -> None:
    if epoch < current.state_epoch:
        raise _begun_anew(key, current, epoch)


def _led_anew(key: ShareKey, known: int, epoch: int) -> FencedLeaderEpochError:
    return FencedLeaderEpochError(
        f"share partition {key}: leader epoch {epoch} is below {known}, which is known"
    )


def _begun_anew(key: ShareKey, current: SharePartitionState, epoch: int) -> FencedStateEpochError:
    return FencedStateEpochError(
        f"share partition {key}: state epoch {epoch} is below {current.state_epoch}, which is known"
    )


def _check_numbers(key: ShareKey, update: Update) -> None:
    """Raise InvalidRequestError if an update has a number that is not valid in a state."""
    state_epoch, leader_epoch, start, complete, batches, _ = update
    if state_epoch < 0 or leader_epoch < 0 or start < UNKNOWN or complete < UNKNOWN:
        raise _below(key, update)
    for batch in batches:
        first, last, state, count = batch
        if not 0 <= first <= last or state not in DURABLE_STATES or count < 0:
            raise InvalidRequestError(f"share partition {key}: {tuple(batch)} is no durable state of offsets")


def _below(key: ShareKey, update: Update) -> InvalidRequestError:
    numbers = zip(_NUMBERS, update[:4], _LEAST, strict=True)
    name, value, least = next(each for each in numbers if each[1] < each[2])
    return InvalidRequestError(f"share partition {key}: {name} {value}: must be at least {least}")
