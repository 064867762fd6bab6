"""`ShareEffects`: carries out the outcomes of share partitions' events: it writes durable state, wakes
waiting fetches and queues dead letters (rules Q33, Q34, Q103 of docs/queue-rules.md).

On disk: writes through `state_log`. Threads: any; a thread writes a state, or wakes fetches, without the lock
of the share partition. If an interrupt ends a write, its share partitions are fenced: the next request loads
them again, because only the log shows whether the write was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import starmap
from typing import Any

from segstore.coordinator.group_settings import GroupSettings
from segstore.coordinator.metrics import MonotonicMs
from segstore.coordinator.share.core.partition import SharePartition
from segstore.coordinator.share.core.values import DeadLetter, Limits, Outcome, StateWrite
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.locks import LockTimer
from segstore.coordinator.share.partitions import ShareLeader, ShareLeaders, ShareTurn
from segstore.coordinator.share.state_log import StateLog, Update
from segstore.coordinator.share.waiters import ShareWaiters
from segstore.errors import (
    FencedLeaderEpochError,
    FencedStateEpochError,
    GroupNotFoundError,
    InvalidRequestError,
    NotLeaderOrFollowerError,
    SegstoreError,
    UnknownTopicOrPartitionError,
)
from segstore.logger import Logger

log = Logger("segstore")
Failures = dict[ShareKey, SegstoreError]
# Calling `tuple.__new__`, which is C code, is faster than calling the class, whose `__new__` is Python code.
_changed: Callable[[tuple[Any, ...]], Update] = partial(tuple.__new__, Update)
FENCING = (
    FencedLeaderEpochError,
    FencedStateEpochError,
    GroupNotFoundError,
    InvalidRequestError,  # This error means that the durable state was deleted (rule Q99).
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
)
"""Errors of a write after which the share partition in memory must not be used any more (rule Q60)."""


class ShareEffects:
    """Carries out outcomes. `letters` is a function that queues the dead letters of a share partition."""

    def __init__(
        self,
        states: StateLog,
        settings: GroupSettings,
        clock: MonotonicMs,
        leaders: ShareLeaders,
        waiters: ShareWaiters,
        timer: LockTimer,
        letters: Callable[[ShareLeader, Sequence[DeadLetter]], None],
    ) -> None:
        self._states, self._settings, self._clock = states, settings, clock
        self._leaders, self._waiters, self._timer, self._letters = leaders, waiters, timer, letters

    def settle(self, turn: ShareTurn) -> Failures:
        """Carry out all outcomes that `turn` has collected, and the outcomes that result from them. Return
        the first write error of each share partition that had one. One call of `StateLog.write` makes the
        first writes of all share partitions; another call makes their second writes. If this method is
        interrupted, the caller must call `turn.abandon`.
        """
        found: Failures = {}
        while turn.due:
            turn.under_way, turn.due = turn.due, []
            writing: dict[ShareKey, tuple[ShareLeader, StateWrite]] = {}
            for leader, (write, wakes, letters) in turn.under_way:
                if wakes:
                    self._waiters.wake(leader.key.group)
                if letters:
                    self._letters(leader, letters)
                if write is not None and leader.key in writing:
                    turn.due.append((leader, Outcome(write)))
                elif write is not None:
                    writing[leader.key] = leader, write
            if writing:
                self._write(turn, writing, found)
            turn.under_way = []
        return found

    def _write(
        self, turn: ShareTurn, writing: Mapping[ShareKey, tuple[ShareLeader, StateWrite]], failures: Failures
    ) -> None:
        """Write states, report the results to the share partitions, and add the new outcomes to `turn`."""
        results = self._states.write(dict(zip(writing, starmap(_update, writing.values()), strict=True)))
        for key, (leader, write) in writing.items():
            error = self._end(turn, leader, write.token, results[key])
            if error is not None:
                failures.setdefault(key, error)

    def _end(
        self, turn: ShareTurn, leader: ShareLeader, token: int, error: SegstoreError | None
    ) -> SegstoreError | None:
        """Report the end of a write to its share partition. Return the error of the write or of the report;
        None if there was none.
        """
        if error is not None and isinstance(error, FENCING):
            self._leaders.fence([leader.key])
            self._waiters.wake(leader.key.group)
            return _moved(leader, error)
        limits, now = self._settings.share(leader.key.group).limits, self._clock()

        def written(core: SharePartition) -> Outcome:
            del leader.writes[token]
            return core.written(token, error is None, now, limits)

        try:
            leader.change(turn, written)
        except NotLeaderOrFollowerError as fenced:
            # The share partition was fenced, and its next load may have come before this write. So even a
            # successful write gets an error.
            return error or fenced
        if error is not None:
            log.warning("the state of share partition %s could not be written: %s", leader.key, error)
            self._timer.plan(leader)  # The failed write's records are locked again: the locks may expire.
        return error

    def plan(self, leader: ShareLeader) -> None:
        """Schedule the expiry of a share partition's earliest lock."""
        self._timer.plan(leader)

    def expire(self, leaders: Iterable[ShareLeader]) -> None:
        """Release the expired locks of share partitions (rule Q36)."""
        turn = ShareTurn()
        try:
            for leader in leaders:
                limits, now = self._settings.share_limits(leader.key.group), self._clock()
                # A share partition that was fenced in the meantime has no locks that could expire.
                with suppress(NotLeaderOrFollowerError):
                    leader.change(turn, partial(_expired, leader, now, limits))
            self.settle(turn)
        finally:
            turn.abandon()


def _expired(leader: ShareLeader, now: float, limits: Limits, _: SharePartition) -> Outcome:
    return leader.expire(now, limits)


def _update(leader: ShareLeader, write: StateWrite) -> Update:
    _, start, complete, batches = write
    return _changed((leader.state_epoch, leader.leader_epoch, start, complete, batches, False))


def _moved(leader: ShareLeader, error: SegstoreError) -> NotLeaderOrFollowerError:
    return NotLeaderOrFollowerError(f"share partition {leader.key} is led anew: {error}")
