"""`Reader`: a member of the demo's consumer group. `GroupView`: the group's settings and its state.

On disk: the group's committed offsets, through the engine. Threads: a `Reader` is a thread with a consumer of
its own.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

import segstore
from segstore.coordinator.consumer_protocol import decode_assignment
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared
from segstore.demo.ledger import Ledger
from segstore.errors import CommitFailedError, RebalanceInProgressError

_POLL_MS = 100
_MOST_RECORDS = 50
_COMMIT_EVERY = 0.25  # time between two commits, in seconds


class Reader(threading.Thread, segstore.ConsumerRebalanceListener):
    """A thread that polls, works `work` seconds for each record, and commits at intervals, until `stop` is
    set. From `silent_from` on (monotonic seconds) the thread behaves like a dead member until `stop` is set:
    it does not poll, does not commit the records that it has read, and does not leave the group.

    `say` is called with the text of each event. If an exception has stopped the thread, `error` is this
    exception.
    """

    def __init__(
        self,
        name: str,
        make: Callable[..., segstore.Consumer],
        topic: str,
        ledger: Ledger,
        work: float,
        say: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._make, self._topic, self._ledger, self._work = make, topic, ledger, work
        self._say, self._stop_all = say, stop
        self.silent_from = math.inf
        self._has: frozenset[int] = frozenset()
        self._consumer: segstore.Consumer | None = None
        self._uncommitted, self._commit_at = 0, 0.0
        self.silent = False
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._consumer = consumer = self._make(client_id=self.name)
            try:
                consumer.subscribe([self._topic], listener=self)
                self._read(consumer)
            finally:
                consumer.close(autocommit=False)
        except Exception as error:
            self.error = error

    def _read(self, consumer: segstore.Consumer) -> None:
        while not self._stop_all.is_set():
            polled = consumer.poll(_POLL_MS, _MOST_RECORDS)
            records = [record for part in polled.values() for record in part]
            self._ledger.read(records)
            self._uncommitted += len(records)
            if records and time.monotonic() >= self.silent_from:
                self._be_silent()
                return
            self._stop_all.wait(len(records) * self._work)
            if not records or time.monotonic() >= self._commit_at:
                self._commit(consumer)
        self._commit(consumer)

    def _be_silent(self) -> None:
        self.silent = True
        self._say(f"{self.name} falls silent, with {self._uncommitted:,} records read and not committed")
        self._stop_all.wait()

    def _commit(self, consumer: segstore.Consumer) -> None:
        self._commit_at = time.monotonic() + _COMMIT_EVERY
        if not self._uncommitted:
            return
        try:
            consumer.commit()
        except (CommitFailedError, RebalanceInProgressError) as error:
            # The new owner of the partitions reads these records again: this is at-least-once delivery.
            self._say(f"{self.name} could not commit: {error}")
        self._uncommitted = 0

    # --- ConsumerRebalanceListener: called by this thread, in poll and close ----------------------

    def on_partitions_assigned(self, assigned: Collection[segstore.TopicPartition]) -> None:
        self._own(self._has | {tp.partition for tp in assigned})

    def on_partitions_revoked(self, revoked: Collection[segstore.TopicPartition]) -> None:
        assert self._consumer is not None
        self._commit(self._consumer)
        self._own(self._has - {tp.partition for tp in revoked})

    def on_partitions_lost(self, lost: Collection[segstore.TopicPartition]) -> None:
        self._uncommitted = 0
        self._own(self._has - {tp.partition for tp in lost})

    def _own(self, partitions: frozenset[int]) -> None:
        if partitions != self._has and not self._stop_all.is_set():
            self._say(f"{self.name} has {' '.join(map(str, sorted(partitions))) or 'none'}")
        self._has = partitions


# --- group -------------------------------------------------------------------------------------

# `GroupView` makes the members of the demo's group, and describes the group. Threads: any.

GROUP = "departure-boards"


class GroupView:
    """The demo's group, for one topic."""

    def __init__(self, store: segstore.Store, topic: str) -> None:
        self._store, self._topic = store, topic
        self._coordinator, self._offsets = shared(store, GroupCoordinator), shared(store, GroupOffsets)

    def consumer(self, patience_ms: int, **settings: Any) -> segstore.Consumer:
        """Return a consumer in the group, without automatic commits. The group removes the consumer if the
        consumer does not poll for `patience_ms` ms.
        """
        return segstore.Consumer(
            self._store,
            group_id=GROUP,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_interval_ms=patience_ms,
            partition_assignment_strategy=["cooperative-sticky"],
            **settings,
        )

    def committed(self) -> dict[int, int]:
        """Return the committed offsets by partition. Leave out partitions without a committed offset."""
        found = self._offsets.fetch(GROUP)
        return {tp.partition: at.offset for tp, at in found.items() if tp.topic == self._topic}

    def owners(self) -> dict[int, str]:
        """Return the client id of each partition's owner."""
        return {
            tp.partition: member.client_id
            for member in self._coordinator.members(GROUP)
            for tp in decode_assignment(member.assignment)
            if tp.topic == self._topic
        }

    def state(self) -> str:
        """Return the group's state in a few words."""
        members = len(self._coordinator.members(GROUP))
        state, generation = self._coordinator.state(GROUP), self._coordinator.generation(GROUP)
        return f"{GROUP}, {state.value}, generation {generation}, {members} members"
