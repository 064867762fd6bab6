"""`FollowerLog`: carries out the decisions of the replication core on the log of one replica (Kafka: the
changes that Partition and ReplicaFetcherThread make to a UnifiedLog; rules R1, R5, R6, R9 to R13, R41).

On disk are the partition's log and checkpoints, by `storage.log.replica`. Threads: one at a time changes the
log; any may call `shows`, under the lock.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from segstore.replication.core.effects import (
    Append,
    AssignEpoch,
    Effect,
    Effects,
    SetHighWatermark,
    SetLogStartOffset,
    Truncate,
    TruncateFullyAndStartAt,
)
from segstore.replication.core.log import ReplicaLog

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from segstore.leader_epochs import EpochEnd
    from segstore.replication.core.follower import Follower
    from segstore.replication.core.messages import FetchAnswer, FetchRequest
    from segstore.replication.fetched import FetchedBatches
    from segstore.storage.log.replica import Replica, Truncated

CarryOut = Callable[[Effects], list[Effect]]
"""Carries out effects in memory, and returns the effects that change files."""
OnTruncated = Callable[[int, "Truncated", "EpochEnd | None"], None]
"""Called after a truncation, with three arguments: the log end offset before the truncation; the result of
the truncation; and the leader's epoch and end offset at which the logs diverge (Kafka: divergingEpoch), or
None if the leader's log was only shorter."""


def log_of(replica: Replica) -> ReplicaLog:
    """Return the offsets and leader epochs of a replica's log, for the core."""
    return ReplicaLog(
        replica.epoch_cache.copy(), replica.start_offset, replica.log_end_offset, replica.high_watermark
    )


class FollowerLog:
    """The log of one replica. `lock` guards the core's decisions, and is free during disk work; it is None if
    the caller does its own locking.
    """

    def __init__(
        self,
        replica: Replica,
        lock: AbstractContextManager[Any] | None = None,
        carry_out: CarryOut | None = None,
        on_truncated: OnTruncated | None = None,
    ) -> None:
        self._replica, self._on_truncated = replica, on_truncated
        self._lock: AbstractContextManager[Any] = nullcontext() if lock is None else lock
        self._carry_out = self._show_all if carry_out is None else carry_out

    def shows(self, effect: Effect) -> bool:
        """Apply a SetHighWatermark effect, and return True; return False for any other effect."""
        if not isinstance(effect, SetHighWatermark):
            return False
        self._replica.set_high_watermark(effect.offset)
        return True

    def _show_all(self, effects: Effects) -> list[Effect]:
        return [effect for effect in effects if not self.shows(effect)]

    def take(
        self, role: Follower, request: FetchRequest, answer: FetchAnswer, found: FetchedBatches | None
    ) -> bool:
        """Append the batches of a fetch answer, or truncate the log (R1, R10, R11); return whether files
        changed. Raises StorageError, and InvalidArgumentError if the batches don't continue this log.
        """
        fetched = None if found is None else found.fetched
        with self._lock:
            effects = self._carry_out(role.on_answer(request, answer, fetched))
        for effect in effects:
            if isinstance(effect, Append) and found is not None:
                end = self._replica.append_checked(found.below(effect.before), answer.high_watermark)
                self.apply(role.log, partial(role.on_append, end, answer, found.fetched))
            else:
                self._change(role.log, effect, answer.diverging)
        return bool(effects)

    def go_on(self, role: Follower, request: FetchRequest, answer: FetchAnswer) -> bool:
        """Move the log end offset to the leader's, if the leader's log has no batch from the fetch offset on
        (R41); return whether the log changed. Raises StorageError.
        """
        with self._lock:
            effect = role.on_nothing(request, answer)
        if effect is None:
            return False
        self._replica.go_on_at(effect.offset, effect.epoch)
        self.apply(role.log, partial(role.on_gone_on, effect, answer))
        return True

    def apply(self, log: ReplicaLog, decide: Callable[[], Effects]) -> bool:
        """Carry out the effects of `decide` in order, and note them in the core's `log`; return whether files
        changed. Raises StorageError.
        """
        with self._lock:
            effects = self._carry_out(decide())
        for effect in effects:
            self._change(log, effect, None)
        return bool(effects)

    def _change(self, log: ReplicaLog, effect: Effect, diverging: EpochEnd | None) -> None:
        replica = self._replica
        if isinstance(effect, SetLogStartOffset):
            replica.set_start_offset(effect.offset)
        elif isinstance(effect, AssignEpoch):
            replica.lead(effect.epoch)
            replica.keep_recent()
        elif isinstance(effect, Truncate):
            before = replica.log_end_offset
            cut = replica.truncate_to(effect.offset)
            with self._lock:
                log.truncated(effect.offset, cut.end_offset)
            if self._on_truncated is not None:
                self._on_truncated(before, cut, diverging)
        elif isinstance(effect, TruncateFullyAndStartAt):
            replica.truncate_fully_and_start_at(effect.offset)
            with self._lock:
                log.started_over(effect.offset)
