"""A member of the demo's group. Nothing on disk of its own: its commits are the group's.

Threads: a `Reader` is one, with a consumer of its own; what others may ask of it says so.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection

import segstore
from segstore.demo.ledger import Ledger
from segstore.errors import CommitFailedError, RebalanceInProgressError

_POLL_MS = 100
_MOST_RECORDS = 50
_COMMIT_EVERY = 0.25  # seconds


class Reader(threading.Thread, segstore.ConsumerRebalanceListener):
    """Polls, does its work (`work` seconds a record), and commits now and then, until `stop` is set. From
    `silent_from` on (monotonic seconds) it is as dead: it keeps what it has, uncommitted, and neither polls
    nor leaves until `stop`.

    `say` is told what happens; `error`: what failed.
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
            # At least once: whoever has the partitions now reads these records again.
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
