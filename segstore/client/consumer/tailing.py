"""`Tailing`: the wait of a consumer that has read all its partitions, and the fast path for the next record.

A wait is one call of the C code. The call returns when the end offset of one of the consumer's partitions has
changed. If the log has grown by one record, the C code reads the record and makes the result of `poll`
(`storage/log/log_end.py`). The C code calls no Python function: after a wait Python's objects are no longer
in the CPU caches, so a call would be slow. After any other change the consumer checks all its partitions for
records.

After a wait that returned a single record, the next poll begins with a wait (`again`), and does not check all
partitions first. The poll does check all partitions if another method of the consumer was called between the
polls, or if the time `_until` has passed.

On disk: nothing of its own. Threads: one, the consumer's. If an interrupt comes in a wait whose C code has
already read a record, no position is changed: the next poll checks all partitions, and returns the record.
"""

from __future__ import annotations

import math
import time
from typing import Protocol

from segstore.client.consumer.config import ConsumerConfig
from segstore.client.consumer.fetcher import FetchedRecords, Fetcher
from segstore.client.consumer.metrics import ConsumerMetrics, Polled
from segstore.client.consumer.no_group import Coordination
from segstore.client.consumer.records import ConsumerRecord
from segstore.client.consumer.subscription import Subscription, TopicPartitionState
from segstore.coordinator.structs import TopicPartition
from segstore.mutex import calls_out
from segstore.storage.log.log_end import LastRecordEnds
from segstore.storage.meta.tailed_ends import LATE
from segstore.storage.store.store import Store
from segstore.threads import longest_sleep


class Called(Protocol):
    """The lock of a consumer (`base.Guard`). `calls` is the number of calls of the consumer's methods, not
    counting polls. `closed`: whether the consumer is closed. `ender` is the id of the thread that closes the
    store, or None.
    """

    calls: int
    closed: bool
    ender: int | None


Came = tuple[Polled, TopicPartitionState | None, int, int]
"""The result of a wait: (the new record by partition, the partition's state, the position after the record,
the record's leader epoch). If no record came, the result is ({}, None, 0, 0).
"""


def given_of(came: Came | None) -> list[FetchedRecords]:
    """Return the result of a wait in the type that `Fetcher.records` returns."""
    if came is None:
        return []
    polled, state, at, leader_epoch = came
    return (
        []
        if state is None
        else [FetchedRecords(tp, state, records, at, leader_epoch) for tp, records in polled.items()]
    )


class Tailing:
    """The waits of one consumer. A wait watches the log ends of all partitions in the subscription's `turns`,
    in the same order.
    """

    def __init__(
        self,
        store: Store,
        guard: Called,
        subscription: Subscription,
        coordination: Coordination,
        fetcher: Fetcher,
        metrics: ConsumerMetrics,
        config: ConsumerConfig,
    ) -> None:
        self._store, self._guard, self._subscription = store, guard, subscription
        self._coordination, self._fetcher = coordination, fetcher
        # To save calls, `_wait` itself changes these lists, which belong to the fetcher and to the metrics.
        self._began, self._singles = fetcher.began, metrics.singles
        self._throttle = fetcher.throttle
        self._how = config.isolation_level == "read_committed", config.check_crcs
        self._last: LastRecordEnds | None = None
        self._turns: list[tuple[TopicPartition, TopicPartitionState]] | None = None
        self._nudges = self._publications = 0
        # The partitions need not be checked for records if the time is before `_until` (monotonic seconds),
        # the guard's `calls` is `_quiet`, and the partition in `_goes_on` is at the position in `_goes_on`.
        # If `_quiet` is -1, they must be checked, because `calls` is never -1.
        self._quiet, self._until = -1, -math.inf
        self._goes_on: tuple[TopicPartitionState, int | None] = TopicPartitionState(), None
        # `_looked` is the value that the guard's `calls` had in the last call of `begin`, or -1 after a wait.
        self._looked = -1
        # `_number` counts the calls of `begin` and `_wait`.
        self._number = 0

    def begin(self) -> None:
        """Called before the partitions are checked for records. If, after this call, a process publishes new
        log ends, or wakes waiting consumers for another reason, the next wait returns at once. Raises
        StoreClosedError, ForkedError.
        """
        self._number += 1
        self._publications, self._looked = self._store.publications, self._guard.calls
        last, turns = self._last, self._subscription.turns
        if (
            last is not None
            and self._turns is turns
            and not last.tailed.outdated
            and last.tailed.nudges() == self._nudges
        ):
            return
        self._turns = self._last = None
        tailed = self._store.tail_ends([tp for tp, _ in turns]) if turns else None
        if tailed is not None:
            self._last = LastRecordEnds(tailed, [tp for tp, _ in turns], ConsumerRecord, *self._how)
            self._nudges = tailed.nudges()
            self._turns = turns

    # A signal handler may close the consumer during this call, because nothing is half changed.
    @calls_out
    def wait(self, deadline: float, others_ms: float) -> list[FetchedRecords]:
        """Wait for a record until `deadline`, but for `others_ms` at most. Return the record that came, or []
        if the consumer must check all partitions.
        """
        now, last, turns = time.monotonic(), self._last, self._turns
        if last is None or turns is None or not self._follows_all():
            self.sleep(deadline, others_ms)
            return []
        self._until, self._goes_on = now + others_ms / 1000, (turns[0][1], turns[0][1].position)
        plain = self._fetcher.has_nothing
        last.expect([state.end if plain else None for _, state in turns])
        quiet = self._guard.calls if plain and self._is_all_read(turns) else -1
        return given_of(self._wait(now, deadline, quiet))

    @calls_out
    def sleep(self, deadline: float, others_ms: float) -> None:
        """Sleep until a process publishes new log ends, or wakes waiting consumers for another reason. The
        sleep ends at `deadline`, or after `others_ms`, at the latest.
        """
        seconds = min(deadline - time.monotonic(), others_ms / 1000)
        if self._last is not None and self._follows_all():
            self._store.wait_for(self._last.tailed, self._nudges, seconds)
        else:
            self._store.wait(self._publications, max(seconds, 0) * 1000)

    def _follows_all(self) -> bool:
        """Return whether all partitions have positions, and `begin` has found their log ends."""
        return self._turns is self._subscription.turns and not self._subscription.unresolved

    def _is_all_read(self, turns: list[tuple[TopicPartition, TopicPartitionState]]) -> bool:
        """Return whether each partition was read up to the end of the partition's log."""
        return all(
            state.fetchable and state.end is not None and state.end.offset == state.position
            for _, state in turns
        )

    @calls_out
    def again(self, now: float, deadline: float) -> Came | None:
        """Wait until `deadline` without a check of all partitions, if the last check and the waits after that
        check have read all partitions to their ends. Return the record that came, or an empty result after
        `deadline`. Return None if the consumer must check all partitions.
        """
        state, at = self._goes_on
        quiet = self._quiet
        if quiet != self._guard.calls or state.position != at:
            if not self._reads_at_ends(now):
                return None
            quiet = self._guard.calls
        if now >= self._until:
            return None
        self._coordination.polled()
        return self._wait(now, deadline, quiet)

    def _reads_at_ends(self, now: float) -> bool:
        """Return whether the last check has read all partitions to their ends. If so, a wait finds every
        later record.
        """
        last, turns = self._last, self._turns
        if last is None or turns is None or self._looked != self._guard.calls:
            return False
        if not (self._follows_all() and self._fetcher.has_nothing and self._is_all_read(turns)):
            return False
        self._until = now + min(self._coordination.wait_ms() / 1000, longest_sleep(0))
        return last.read_up_to([state.end for _, state in turns if state.end is not None])

    @calls_out
    def _wait(self, now: float, deadline: float, quiet: int) -> Came | None:
        """Wait until `deadline` or `_until`. Return the record that came, or an empty result after
        `deadline`. Return None if all partitions must be checked. If a record came, `_quiet` becomes `quiet`.
        """
        last, turns, until, guard = self._last, self._turns, self._until, self._guard
        store, throttle = self._store.context, self._throttle
        assert last is not None
        assert turns is not None
        # If an interrupt comes after this, the next poll must check all partitions.
        self._quiet = self._looked = -1
        calls, number = guard.calls, self._number + 1
        self._number = number
        late = until if until < deadline else deadline
        tailed = last.tailed
        at = self._store.wait_for(tailed, self._nudges, late - now)
        came, tailed.came = tailed.came, None
        # During the wait a signal handler may have called a method, or another thread may have begun to close
        # the consumer.
        if guard.calls != calls or self._number != number or guard.closed or guard.ender is not None:
            return None
        if came is None or store.closed or throttle.bound is not None:
            return self._nothing() if at == LATE and late == deadline else None
        polled, offset, epoch, start, size, ended = came
        tp, state = turns[at]
        if state.position != offset or state.paused or not state.assigned:
            return None
        self._began[:] = ((state, offset, state.leader_epoch),)
        if self._singles is not None:
            self._singles += tp, start, offset, size, ended
        self._subscription.cursor = at + 1 if at + 1 < len(turns) else 0
        # The last record's partition continues at the offset after the record.
        self._goes_on = state, offset + 1
        self._quiet = quiet
        return polled, state, offset + 1, epoch

    def _nothing(self) -> Came:
        """Return the result of a wait without a record."""
        self._began.clear()
        return {}, None, 0, 0
