"""`StandbyAcks`: an append to a partition waits until a standby in sync mode has the append's records (R15,
R23).

Nothing is on disk. The in-sync replicas are this log and the standby, and min.insync.replicas is 2. The store
never drops the standby from the in-sync replicas by itself, so the high watermark is the standby's fetch
offset. Threads: any; the high watermark only rises.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from segstore.errors import (
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    SegstoreError,
    StorageError,
)
from segstore.mutex import Mutex
from segstore.storage.context import os_errors
from segstore.threads import take

if TYPE_CHECKING:
    from segstore.storage.log.partition import Partition

_Outcomes = SimpleQueue[type[SegstoreError] | None]
ALL = -1


class StandbyAcks:
    """The acknowledger (`Acknowledger`) of a partition with a standby in sync mode. `away()` returns the
    reason why appends can't wait for the standby, or "" if they can.
    """

    def __init__(self, partition: Partition, away: Callable[[], str]) -> None:
        self._partition, self._away = partition, away
        self._lock = Mutex()
        self._waiting: list[tuple[int, _Outcomes]] = []
        self._over: type[SegstoreError] | None = None
        self._alone = False

    def check(self, acks: int) -> None:
        """Raise NotEnoughReplicasError if `acks` is -1 (all) and appends can't wait for the standby."""
        if acks == ALL and not self._alone and (away := self._away()):
            raise NotEnoughReplicasError(
                f"{self._partition.directory}: the in-sync replicas are this store and its standby, and "
                f"{away}; nothing was written (`segstore demote --standby` goes on without a standby)"
            )

    def wait(self, end_offset: int, acks: int, timeout_ms: float) -> None:
        """Wait until the standby has all records below `end_offset`. Raises RequestTimedOutError,
        NotLeaderOrFollowerError. This log then has the records, but may lose them.
        """
        if acks != ALL:
            return
        outcome: _Outcomes = SimpleQueue()
        with self._lock:
            if self._over is not None:
                outcome.put(self._over)
            elif self._alone or self._partition.visible.high_watermark >= end_offset:
                return
            else:
                self._waiting.append((end_offset, outcome))
        try:
            error = take(outcome, timeout_ms / 1000)
        except Empty:
            error = RequestTimedOutError
            with self._lock:
                self._waiting = [each for each in self._waiting if each[1] is not outcome]
        if error is not None:
            raise error(f"{self._partition.directory}: the records were appended, but {_WHY[error]}")

    def shown(self) -> None:
        """Do nothing, because no append writes the standby's log."""

    def failed(self, error: StorageError) -> None:
        """Do nothing, because the caller gets the error."""

    def fetched(self, offset: int) -> None:
        """Raise the high watermark to the standby's fetch offset, which lies within the log. Raises
        StorageError.
        """
        visible = self._partition.visible
        # If no append waits now, none can be acknowledged, because an append that begins to wait later waits
        # only for an offset above the high watermark.
        if offset <= visible.high_watermark and not self._waiting:
            return
        with self._lock:
            if offset > visible.high_watermark and not self._alone:
                with os_errors():
                    visible.set_high_watermark(offset)
            self._answer(visible.high_watermark, None)

    def _answer(self, reached: int, error: type[SegstoreError] | None) -> None:
        for end_offset, outcome in self._waiting:
            if end_offset <= reached:
                outcome.put(error)
        self._waiting = [each for each in self._waiting if each[0] > reached]

    def demote(self) -> None:
        """Fail all waiting and later appends with NotLeaderOrFollowerError."""
        with self._lock:
            self._over = NotLeaderOrFollowerError
            for _, outcome in self._waiting:
                outcome.put(self._over)
            self._waiting = []

    def go_on(self) -> None:
        """Undo `demote`, because this store is still the leader: later appends wait for the standby again."""
        with self._lock:
            self._over = None

    def end(self) -> None:
        """Acknowledge the waiting appends now, and later appends as soon as their records are in this log,
        because there is no standby any more.
        """
        partition = self._partition
        with self._lock:
            # Before the waiting appends are acknowledged, readers must see their records.
            with os_errors(), partition.token:
                partition.tail.has_standby = False
                partition.visible.end_replica()
            self._alone = True
            partition.acks = None
            for _, outcome in self._waiting:
                outcome.put(None)
            self._waiting = []


_WHY: dict[type[SegstoreError], str] = {
    RequestTimedOutError: "the standby has not fetched them in time",
    NotLeaderOrFollowerError: "this store was demoted since",
}
