"""`Fetchers`: the logs that replicate a leader's log, and one fetcher for each broker that is such a leader
(Kafka: AbstractFetcherManager).

Nothing is on disk. Threads: any, but only one thread calls `follow` and `stop`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from segstore.mutex import Mutex
from segstore.replica_fetcher.fetch_request import FetchTerms
from segstore.replica_fetcher.fetcher import ReplicaFetcher
from segstore.replica_fetcher.followed_log import FollowedLog, Key
from segstore.threads import Latch
from segstore.wire.cluster import Cluster
from segstore.wire.metadata import NO_LEADER, LeaderAndEpoch


class Watcher(Protocol):
    """Receives errors of the fetchers. Its methods must not block."""

    def stale(self, error: Exception) -> None:
        """Ask for the cluster's leaders again, because a fetcher had the error `error`."""

    def failed(self, followed: FollowedLog, error: Exception) -> None:
        """Handle the error `error`, after which a log can't be fetched any more."""


class Fetchers:
    """The owner of all fetchers: implements `FetcherContext`."""

    def __init__(self, cluster: Cluster, terms: FetchTerms, watcher: Watcher) -> None:
        self._cluster, self._terms, self._watcher = cluster, terms, watcher
        self._lock = Mutex()
        self._closed = False
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._logs: dict[Key, FollowedLog] = {}
        self._by_leader: dict[int, list[FollowedLog]] = {}
        self.unreported: set[FollowedLog] = set()
        """The logs that have reached the high watermark of their first fetch answer, and whose leader does
        not know that yet.
        """
        self.change = Latch()
        """A latch that is opened when logs may have caught up. A new latch then takes its place."""

    @property
    def logs(self) -> Mapping[Key, FollowedLog]:
        """Return the followed logs. If the set of followed logs changes, a new dict takes the place of the
        old one.
        """
        return self._logs

    def follow(self, logs: Iterable[FollowedLog], leaders: Mapping[Key, LeaderAndEpoch]) -> None:
        """From now on, fetch for these logs and no others, each from its leader in `leaders`. Raises
        IllegalStateError if a fetcher's thread can't be started; the next call tries again.
        """
        held = {each.key: each for each in logs}
        for key, led in leaders.items():
            if key in held:
                with held[key].lock:
                    held[key].follow(led)
        for key in held.keys() - self._logs.keys():
            held[key].on_reached = self.unreported.add
        self._replace(held)
        self.unreported.intersection_update(held.values())

    def changed(self) -> None:
        """Wake the threads that wait until logs have caught up."""
        before, self.change = self.change, Latch()
        before.open()

    def _replace(self, held: dict[Key, FollowedLog]) -> None:
        by_leader: dict[int, list[FollowedLog]] = {}
        for each in held.values():
            by_leader.setdefault(each.led.leader, []).append(each)
        by_leader.pop(NO_LEADER, None)
        with self._lock:
            if self._closed:
                return
            self._logs, self._by_leader = held, by_leader
            for node in by_leader.keys() - self._fetchers.keys():
                fetcher = ReplicaFetcher(node, self._cluster, self._terms, self)
                # If no thread can be started, the fetcher is not registered, so the next `follow` makes one.
                fetcher.start()
                self._fetchers[node] = fetcher

    def stop(self, seconds: float) -> bool:
        """Stop all fetchers. Wait for the end of each for at most `seconds`, and return whether all have
        stopped.
        """
        with self._lock:
            self._closed = True
            fetchers = list(self._fetchers.values())
        for fetcher in fetchers:
            fetcher.close(0)
        ended = [fetcher.close(seconds) for fetcher in fetchers]
        return all(ended)

    # --- calls of fetchers ------------------------------------------------------------------------

    def led_by(self, node: int) -> Sequence[FollowedLog]:
        """Return the followed logs whose leader is the broker `node` now."""
        return self._by_leader.get(node, ())

    def note_reported(self, logs: Sequence[FollowedLog]) -> None:
        """Record that a fetch has sent the log end offsets of these logs to their leader."""
        self.unreported.difference_update(logs)
        for each in logs:
            each.source.is_reported = True
        self.changed()

    def ended(self, fetcher: ReplicaFetcher) -> bool:
        """If the fetcher's broker leads no followed log any more, remove the fetcher, and return True: the
        fetcher stops. If the broker leads one, return False.
        """
        with self._lock:
            if self._by_leader.get(fetcher.node):
                return False
            if self._fetchers.get(fetcher.node) is fetcher:
                del self._fetchers[fetcher.node]
            return True

    def stale(self, error: Exception) -> None:
        """Make the watcher ask for the cluster's leaders again, because of `error`."""
        self._watcher.stale(error)

    def failed(self, followed: FollowedLog, error: Exception) -> None:
        """Fetch no more for a log, and pass its error to the watcher."""
        followed.error = error
        with self._lock:
            by_leader = {
                node: [each for each in logs if each is not followed]
                for node, logs in self._by_leader.items()
            }
            self._by_leader = by_leader
        self._watcher.failed(followed, error)
