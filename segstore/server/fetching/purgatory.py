"""`Purgatory`: parked fetches, which are Fetch requests that wait until `min_bytes` are available, or
`max_wait_ms` have passed (Kafka: DelayedFetch, DelayedOperationPurgatory).

Owns nothing on disk. Threads: the loop's thread. A parked fetch has a reference to its request, but no bytes
of records and no open file. After a publication (a change that readers of the store see) each awaited
partition is checked once, even if many fetches wait for the partition. If the partition's high watermark,
last stable offset or log end offset has changed, the available bytes of these fetches are counted again.

At the end of each iteration the event loop checks whether requests of this iteration have appended records.
While a fetch is parked, a thread sleeps in `Store.wait`. Publications of other threads and processes wake the
thread, and the thread wakes the loop. While a standby is in sync mode, the thread is not used:
`Purgatory._published` is called after every publication, and wakes the loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

from segstore.errors import SegstoreError
from segstore.server.fetching.reading import Look, Terms, counted
from segstore.server.fetching.sessions import Wanted
from segstore.server.logs import Logs
from segstore.server.node import Node, Timer
from segstore.server.primary import primary_of
from segstore.server.request import Request
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.writer import StoreWriter

_Key = tuple[str, int]
_Ends = tuple[PartitionLog, int, int, int] | None
"""(log, high watermark, last stable offset, log end offset) of a partition, None if the partition does not
exist. The log end offset is read only if a replica's fetch waits. If none waits, the last member is the high
watermark too.
"""
_SWEPT_AT_LEAST = 64
_LONGEST_MS = 3_600_000.0


class Awaited(NamedTuple):
    """A partition that a fetch waits for, with the partition's high watermark and last stable offset when the
    fetch read it last.
    """

    wanted: Wanted
    high_watermark: int
    last_stable_offset: int


def awaited(look: Look) -> list[Awaited]:
    """Return the partitions that a fetch can wait for: partitions of `look`, the result of one read, that
    exist and have no error.
    """
    return [
        Awaited(wanted, data.high_watermark, data.last_stable_offset)
        for wanted, data in look.fetched
        if not data.error_code and wanted.topic is not None
    ]


class Parked:
    """A waiting fetch. `complete` sends the fetch's answer, and raises nothing. `sizes` has the number of
    available bytes of each partition with records. `is_over` says that `max_wait_ms` has passed.
    """

    def __init__(
        self, request: Request, terms: Terms, sizes: Mapping[Wanted, int], complete: Callable[[], None]
    ) -> None:
        self.request, self.terms, self.complete = request, terms, complete
        self.sizes, self.size = dict(sizes), sum(sizes.values())
        self.timer: Timer | None = None
        self.keys: list[_Key] = []
        self.is_over = False

    def recount(self, logs: Logs, wanted: Wanted, ends: _Ends) -> bool:
        """Count the available bytes of a changed partition again. Return whether the fetch must be answered
        now.
        """
        # If min_bytes is at most 1, the default of clients, the partition's offsets are enough to decide.
        if self.terms.min_bytes <= 1 and ends is not None:
            _, high_watermark, stable, end = ends
            if self.terms.replica_id >= 0:
                high_watermark = end
            if wanted.offset < (stable if self.terms.committed else high_watermark):
                return True
        found = counted(logs, wanted, self.terms)
        if found is None:
            return True
        self.size += found - self.sizes.get(wanted, 0)
        self.sizes[wanted] = found
        return self.size >= self.terms.min_bytes


class DelayedStandbyFetch(Protocol):
    """The waiting fetch of a standby that has fetched all records. The purgatory sets `timer`, and `until`,
    the time of `time.monotonic` at which the wait ends.
    """

    timer: Timer | None
    until: float

    @property
    def is_open(self) -> bool:
        """Whether the client's connection is open."""

    def has_moved(self) -> bool:
        """Return whether there is new data for the standby."""

    def answer(self) -> None:
        """Send the fetch's answer. Called when the fetch was removed from the purgatory. Raises nothing."""


class _Spot:
    """A partition that parked fetches wait for. `seen` has the partition's offsets at the last check."""

    __slots__ = ("has_replica", "key", "parked", "seen")

    def __init__(self, key: _Key, logs: Logs, awaited: Awaited) -> None:
        self.key, log = key, _log(logs, key)
        shown = awaited.high_watermark
        self.seen: _Ends = None if log is None else (log, shown, awaited.last_stable_offset, shown)
        self.has_replica = False
        """Whether a replica's fetch waits, or has waited, for the partition. If True, changes of the log end
        offset are detected too.
        """
        self.parked: dict[Parked, Wanted] = {}

    def has_moved(self, logs: Logs) -> bool:
        """Read the partition's offsets again. Return whether an offset or the log object has changed, or the
        partition does not exist.
        """
        before, self.seen = self.seen, _ends(logs, self.key, self.has_replica)
        return self.seen is None or self.seen != before


def _log(logs: Logs, key: _Key) -> PartitionLog | None:
    try:
        return logs.find(*key)
    except SegstoreError:
        return None


def _ends(logs: Logs, key: _Key, of_replica: bool) -> _Ends:
    try:
        log = logs.find(*key)
        shown = log.high_watermark
        return log, shown, log.last_stable_offset, log.log_end_offset if of_replica else shown
    except SegstoreError:
        return None


class Purgatory:
    """The parked fetches of a server."""

    def __init__(self, node: Node, logs: Logs) -> None:
        self._store, self._loop, self._logs = node.store, node.loop, logs
        self._spots: dict[_Key, _Spot] = {}
        self._parked: dict[Parked, None] = {}
        self._standing: dict[DelayedStandbyFetch, None] = {}
        self._swept_at = _SWEPT_AT_LEAST
        self._seen = -1  # number of the store's publications before the last check
        self._watch = node.loop.watch(self._wake, self.look)
        node.loop.every_turn(self._end_turn)
        self._primary, self._thread = primary_of(node), -1
        self._is_notified = False
        """Whether a call of `_published` wakes the loop after each publication. If False, a thread (the
        watch's) sleeps in `Store.wait` and wakes the loop.
        """
        if isinstance(side := node.store.engine, StoreWriter):
            side.call_after_publications(self._published)

    def __len__(self) -> int:
        return len(self._parked) + len(self._standing)

    def park(self, parked: Parked, waits: Iterable[Awaited], seen: int) -> None:
        """Let a fetch wait until it can be answered. `waits` are the partitions of the fetch, and `seen` is
        the number of the store's publications before these partitions were read. Raises IllegalStateError if
        no thread can be started.
        """
        if len(self._parked) >= self._swept_at:
            self._sweep()
        self._begin(seen)
        self._parked[parked] = None
        of_replica = parked.terms.replica_id >= 0
        for each in waits:
            wanted = each.wanted
            key = wanted.topic or "", wanted.partition
            spot = self._spots.get(key)
            if spot is None:
                spot = self._spots[key] = _Spot(key, self._logs, each)
            spot.parked[parked] = wanted
            spot.has_replica = spot.has_replica or of_replica
            parked.keys.append(key)
        parked.timer = self._loop.later(parked.terms.max_wait_ms / 1000, lambda: self._over(parked))

    def _over(self, parked: Parked) -> None:
        parked.is_over = True
        self.complete(parked)

    def _begin(self, seen: int) -> None:
        """Begin to wait for publications after publication number `seen`. Called before the fetch is stored,
        because no fetch must stay in the purgatory if this function raises.
        """
        if not (self._parked or self._standing):
            # While fetches are parked, `_seen` stays: they may wait for an earlier publication.
            self._seen, self._thread = seen, threading.get_ident()
        self._ask()

    def stand(self, standing: DelayedStandbyFetch, seen: int, seconds: float) -> None:
        """Let a standby's fetch wait until there is new data, or `seconds` have passed. `seen` is the number
        of the store's publications before the fetch read its partitions.
        """
        self._begin(seen)
        self._standing[standing] = None
        standing.until = time.monotonic() + seconds
        # The timer of an earlier fetch is used again. Most fetches are answered long before their wait ends,
        # so this saves a new timer for each.
        if standing.timer is None:
            standing.timer = self._loop.later(seconds, partial(self._due, standing))

    def _due(self, standing: DelayedStandbyFetch) -> None:
        standing.timer = None
        left = standing.until - time.monotonic()
        if standing not in self._standing:
            return
        if left > 0 and standing.is_open:
            standing.timer = self._loop.later(left, partial(self._due, standing))
        else:
            self._answer(standing)

    def _answer(self, standing: DelayedStandbyFetch) -> None:
        del self._standing[standing]
        if standing.is_open:
            standing.answer()

    def _ask(self) -> None:
        """Let a thread (the watch's) wait for the next publication, unless a standby is in sync mode. Raises
        IllegalStateError if no thread can be started.
        """
        self._is_notified = self._primary is not None and self._primary.registration.sync
        if not self._is_notified:
            seen = self._seen
            self._watch.ask(lambda: self._store.wait(seen, _LONGEST_MS))

    def _published(self) -> None:
        """Wake the loop if another thread has published. Called in the thread that has published."""
        # If the loop parks a fetch after this check, `_end_turn` checks the fetch at the end of the
        # iteration.
        if self._is_notified and (self._parked or self._standing) and threading.get_ident() != self._thread:
            self._loop.soon(self._end_turn)

    def _wake(self) -> None:
        # `wake` raises if the store is closed; no thread sleeps in a closed store.
        with suppress(SegstoreError):
            self._store.wake()

    def _end_turn(self) -> None:
        """Check the awaited partitions if anything was published since the last check."""
        if (self._parked or self._standing) and self.publications != self._seen:
            self.look()

    def look(self) -> None:
        """Check the awaited partitions, and answer the fetches that have enough bytes now."""
        if not (self._parked or self._standing):
            return
        # Read before the partitions are checked: a publication during the check then ends the next sleep.
        self._seen = self.publications
        if self._seen < 0:
            for parked in list(self._parked):
                self.complete(parked)
        for standing in list(self._standing):
            if self._seen < 0 or not standing.is_open or standing.has_moved():
                self._answer(standing)
        for spot in list(self._spots.values()):
            if spot.has_moved(self._logs):
                for parked, wanted in list(spot.parked.items()):
                    if parked in self._parked and parked.recount(self._logs, wanted, spot.seen):
                        self.complete(parked)
        if self._seen >= 0 and (self._parked or self._standing):
            self._ask()

    @property
    def publications(self) -> int:
        """The number of the store's publications, -1 if the store is closed."""
        store = self._store
        try:
            return -1 if store.context.closed else store.engine.publications
        except SegstoreError:
            return -1

    def complete(self, parked: Parked) -> None:
        """Remove a fetch from the purgatory, and answer the fetch if its connection is open."""
        self.drop(parked)
        if parked.request.channel.is_open:
            parked.complete()

    def drop(self, parked: Parked) -> None:
        """Remove a fetch from the purgatory, without answering the fetch."""
        self._parked.pop(parked, None)
        if parked.timer is not None:
            parked.timer.cancel()
        for key in parked.keys:
            spot = self._spots.get(key)
            if spot is not None:
                spot.parked.pop(parked, None)
                if not spot.parked:
                    del self._spots[key]

    def _sweep(self) -> None:
        """Remove the fetches of closed connections. Called when the number of fetches has doubled since the
        last call.
        """
        for parked in [each for each in self._parked if not each.request.channel.is_open]:
            self.drop(parked)
        self._swept_at = max(2 * len(self._parked), _SWEPT_AT_LEAST)

    def close(self) -> None:
        """Remove all fetches, and do not answer them, because the server is being closed."""
        for parked in list(self._parked):
            self.drop(parked)
        for standing in self._standing:
            if standing.timer is not None:
                standing.timer.cancel()
        self._standing.clear()
        if isinstance(side := self._store.engine, StoreWriter):
            side.stop_calling(self._published)
