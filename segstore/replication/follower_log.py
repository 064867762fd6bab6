"""`FollowerLog`: changes the log of one replica as `Follower` and `Leader` decide (Kafka: the changes that
Partition and ReplicaFetcherThread make to a UnifiedLog; rules R1, R5, R6, R9 to R13, R41).

On disk are the partition's log and checkpoints, which `storage.log.replica` writes. Threads: one thread at a
time changes the log. Any thread that holds the lock may call `shows`.
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
"""A function that carries out the effects that change only memory, and returns the effects that change
files.
"""
OnTruncated = Callable[[int, "Truncated", "EpochEnd | None"], None]
"""A function that is called after a truncation, with three arguments. The first is the log end offset before
the truncation, the second the result of the truncation. The third is the epoch and end offset of the leader's
log at which the logs diverge (Kafka: divergingEpoch), or None if no divergence caused the truncation.
"""


def log_of(replica: Replica) -> ReplicaLog:
    """Return a `ReplicaLog` with the offsets and leader epochs of a replica's log."""
    return ReplicaLog(
        replica.epoch_cache.copy(), replica.start_offset, replica.log_end_offset, replica.high_watermark
    )


class FollowerLog:
    """The log of one replica. `lock` guards the replica's role and offsets in memory. It is not held during
    disk work. `lock` is None if the caller makes sure that one thread at a time uses the role and offsets.
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
        """If `effect` is a SetHighWatermark, set the high watermark and return True. If `effect` is another
        effect, return False.
        """
        if not isinstance(effect, SetHighWatermark):
            return False
        self._replica.set_high_watermark(effect.offset)
        return True

    def _show_all(self, effects: Effects) -> list[Effect]:
        return [effect for effect in effects if not self.shows(effect)]

    def take(
        self, role: Follower, request: FetchRequest, answer: FetchAnswer, found: FetchedBatches | None
    ) -> bool:
        """Append the batches of a fetch answer, or truncate the log if the answer has a diverging epoch (R1,
        R10, R11). Return whether files changed. Raises StorageError, and InvalidArgumentError if the batches
        begin below this log's end, or their leader epochs fall.
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
        """If the leader's log has no batch at the fetch offset or above, set the log end offset to the
        leader's log end offset (R41). Return whether the log changed. Raises StorageError.
        """
        with self._lock:
            effect = role.on_nothing(request, answer)
        if effect is None:
            return False
        self._replica.go_on_at(effect.offset, effect.epoch)
        self.apply(role.log, partial(role.on_gone_on, effect, answer))
        return True

    def apply(self, log: ReplicaLog, decide: Callable[[], Effects]) -> bool:
        """Call `decide`, carry out the returned effects in order, and update `log`. Return whether files
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
