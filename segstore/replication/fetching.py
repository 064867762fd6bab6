"""`Fetching`: the thread of a data directory that changes the roles of the directory's replicas, and fetches
for its followers (Kafka: ReplicaFetcherThread, BrokerLifecycleManager; rules R27, R32).

On disk only the directory's own methods write. Threads: its own; any thread may call `post` and `stop`.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

from segstore.errors import SegstoreError
from segstore.logger import Logger
from segstore.replication.local_replica import LocalReplica
from segstore.threads import Background, Latch, take

if TYPE_CHECKING:
    from segstore.replication.settings import ReplicationConfig

log = Logger("segstore")

LAST_ROUND = 0.5
"""A follower that has fetched all records fetches once more after this number of seconds, to get the newest
high watermark (Kafka: replica.fetch.wait.max.ms).
"""


class FetchingDirectory(Protocol):
    """Methods of the data directory that its thread calls."""

    broker: int

    def on_error(self, error: Exception) -> bool:
        """Handle an error of the thread's work. Return whether the thread should retry the work later."""

    def step(self, replica: LocalReplica) -> bool | None:
        """Fetch for a replica. Return True if the leader may have more records, None if the leader can't
        answer yet, else False.
        """

    def ask(self, replica: LocalReplica) -> None:
        """Queue a fetch for a replica."""

    def checkpoint(self) -> None:
        """Write the directory's checkpoints."""

    def beat(self) -> None:
        """Send the heartbeat."""


class Fetching:
    """The thread that changes the roles of a directory's replicas, and fetches for followers."""

    def __init__(self, directory: FetchingDirectory, settings: ReplicationConfig) -> None:
        self._directory, self._settings = directory, settings
        self._asked: SimpleQueue[LocalReplica | Callable[[], object] | None] = SimpleQueue()
        self._later: list[tuple[float, int, LocalReplica]] = []
        self._count, self._over, self._ended = count(), False, Latch()
        self._once_more: dict[LocalReplica, None] = {}
        self._more_at = 0.0
        self._beats_at = self.turned = time.monotonic()
        self._checkpoint_at = self.turned + settings.checkpoint_interval_ms / 1000

    def start(self) -> None:
        """Start the thread."""
        Background(self._run, f"segstore-fetcher-{self._directory.broker}").start()

    @property
    def ended(self) -> bool:
        """Return whether the directory's thread has ended."""
        return self._ended.is_open

    def post(self, work: LocalReplica | Callable[[], object]) -> None:
        """Queue `work`: a function to call, or a replica to fetch for."""
        self._asked.put(work)

    def stop(self, seconds: float) -> bool:
        """Stop the thread. Wait for its end for at most `seconds`, and return whether it has ended."""
        self._over = True
        self._asked.put(None)
        return self._ended.wait(seconds)

    def _run(self) -> None:
        try:
            while not self._over:
                self._guarded(self._turn)
            self._last_round()
        finally:
            self._ended.open()

    def _guarded(self, work: Callable[[], object]) -> bool:
        """Call `work`, and pass its error to `on_error`. Return False if `work` failed and must not be
        retried.
        """
        try:
            work()
        except (SegstoreError, OSError) as error:
            return self._directory.on_error(error)
        except Exception as error:
            log.exception("%r failed", self._directory)
            return self._directory.on_error(error)
        return True

    def _turn(self) -> None:
        """Do the periodic work that is due. If none is due, do the next piece of work in the queue."""
        self.turned = time.monotonic()
        pause = self._pause()
        if pause <= 0:  # The due work is done before the queue is read, because the queue may never be empty.
            self._due()
            return
        try:
            work = take(self._asked, pause)
        except Empty:
            return
        if isinstance(work, LocalReplica):
            self.fetch(work, partial(self._directory.step, work))
        elif work is not None:
            work()

    def _pause(self) -> float:
        at = min([self._beats_at, self._checkpoint_at, *[later[0] for later in self._later[:1]]])
        if self._once_more:
            at = min(at, self._more_at)
        return max(at - time.monotonic(), 0.0)

    def _due(self) -> None:
        """Do the periodic work that is due: heartbeats, checkpoints, and fetches that are retried."""
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            self._directory.ask(heapq.heappop(self._later)[2])
        if self._once_more and self._more_at <= now:
            self._last_round()
        if self._beats_at <= now:
            self._beat(now)
        if self._checkpoint_at <= now:
            self._checkpoint_at = now + self._settings.checkpoint_interval_ms / 1000
            self._directory.checkpoint()

    def breathe(self) -> None:
        """Send the heartbeat if it is due. Called during long work, because an election of thousands of
        partitions may take longer than the session timeout.
        """
        self.turned = now = time.monotonic()
        if self._beats_at <= now and not self._over:
            self._beat(now)

    def _beat(self, now: float) -> None:
        self._beats_at = now + self._settings.heartbeat_interval_ms / 1000
        self._directory.beat()

    def _last_round(self) -> None:
        """Fetch once more for idle followers, so that they get the newest high watermark."""
        again, self._once_more = self._once_more, {}
        for replica in again:
            self._guarded(partial(self._directory.step, replica))
            self._guarded(self.breathe)

    def fetch(self, replica: LocalReplica, step: Callable[[], bool | None]) -> None:
        """Call `step`, which fetches for a replica, and schedule the next fetch. If the leader's log is
        damaged, the fetch is retried again and again, as in Kafka: the follower makes no progress, and is
        removed from the ISR.
        """
        more: bool | None = None
        try:
            more = step()
        except (SegstoreError, OSError) as error:
            if not self._directory.on_error(error):
                return
        if more is None:
            at = time.monotonic() + self._settings.fetch_backoff_ms / 1000
            heapq.heappush(self._later, (at, next(self._count), replica))
        elif more:
            self._directory.ask(replica)
        else:
            if not self._once_more:  # The first follower in `_once_more` sets the time for all of them.
                self._more_at = time.monotonic() + LAST_ROUND
            self._once_more[replica] = None
