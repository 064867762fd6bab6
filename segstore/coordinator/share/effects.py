"""`ShareEffects` does what the events of share partitions ask for: writes of durable state, wakes, dead
letters (Q33, Q34, Q103).

On disk: writes through `state_log`. Threads: any; no lock of a share partition is held while a state is
written, or somebody is woken. An interrupt fences the share partitions whose writes are under way: what has
become of these is in the log.
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
_changed: Callable[[tuple[Any, ...]], Update] = partial(tuple.__new__, Update)  # a call of C
FENCING = (
    FencedLeaderEpochError,
    FencedStateEpochError,
    GroupNotFoundError,
    InvalidRequestError,  # its state was deleted (Q99)
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
)
"""Errors of a write after which the share partition must not go on (Q60)."""


class ShareEffects:
    """`letters` takes dead letters of a share partition."""

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
        """Do all that the outcomes of a turn ask for, and then what follows from it; return the errors of the
        writes, the first of each share partition. Writes are one call of the log, but for a second one of a
        share partition. The caller abandons the turn if this is interrupted.
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
        """Write states, and report to the share partitions; what is due after that is added to the turn."""
        results = self._states.write(dict(zip(writing, starmap(_update, writing.values()), strict=True)))
        for key, (leader, write) in writing.items():
            error = self._end(turn, leader, write.token, results[key])
            if error is not None:
                failures.setdefault(key, error)

    def _end(
        self, turn: ShareTurn, leader: ShareLeader, token: int, error: SegstoreError | None
    ) -> SegstoreError | None:
        """End a write; return the error for whoever wanted it."""
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
        except NotLeaderOrFollowerError as fenced:  # it was loaded anew, perhaps before this write
            return error or fenced
        if error is not None:
            log.warning("the state of share partition %s could not be written: %s", leader.key, error)
            self._timer.plan(leader)  # locks hold again
        return error

    def plan(self, leader: ShareLeader) -> None:
        """Have the locks of a share partition end in time."""
        self._timer.plan(leader)

    def expire(self, leaders: Iterable[ShareLeader]) -> None:
        """End the locks of share partitions that have run out (Q36)."""
        turn = ShareTurn()
        try:
            for leader in leaders:
                limits, now = self._settings.share_limits(leader.key.group), self._clock()
                with suppress(NotLeaderOrFollowerError):  # it was fenced since it was planned
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
