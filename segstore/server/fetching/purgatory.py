"""`Purgatory`: fetches that wait until there are enough bytes for them, or their time is over (Kafka:
DelayedFetch and its purgatory).

Nothing is on disk. Threads: the loop's. A parked fetch keeps no bytes and no file, only what it asked for.
Partitions are watched one by one, however many fetches wait for each: after a publication each partition is
looked at once, and only fetches of those that have moved are counted again.

What is appended by requests is seen at the end of the loop's turn; a thread of the loop's that sleeps in
`Store.wait`, only while a fetch is parked, tells of what other threads and processes publish.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from segstore.errors import SegstoreError
from segstore.server.fetching.reading import Look, Terms, counted
from segstore.server.fetching.sessions import Wanted
from segstore.server.logs import Logs
from segstore.server.node import Node, Timer
from segstore.server.request import Request
from segstore.storage.store.partition_log import PartitionLog

_Key = tuple[str, int]
_Ends = tuple[PartitionLog, int, int, int] | None
"""A partition's log, its high watermark, its last stable offset, and its log end offset, which is looked for
only where a replica waits; None where it is gone.
"""
_SWEPT_AT_LEAST = 64
_LONGEST_MS = 3_600_000.0


class Parked:
    """A fetch that waits. `complete` answers it, and raises nothing; `sizes` are the bytes that its
    partitions have so far.
    """

    def __init__(self, request: Request, terms: Terms, look: Look, complete: Callable[[], None]) -> None:
        self.request, self.terms, self.complete = request, terms, complete
        self.sizes, self.size = look.sizes, look.size
        self.timer: Timer | None = None
        self.keys: list[_Key] = []

    def recount(self, logs: Logs, wanted: Wanted, ends: _Ends) -> bool:
        """Count the bytes of a partition that has moved; returns whether the fetch is to be answered. Where
        any byte is enough, as clients have it by default, the partition's ends tell.
        """
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


class _Spot:
    """A partition that parked fetches wait for: its log, and the ends that it had when they were counted."""

    __slots__ = ("has_replica", "key", "parked", "seen")

    def __init__(self, key: _Key, logs: Logs, data: Any) -> None:
        self.key, log = key, _log(logs, key)
        shown = data.high_watermark
        self.seen: _Ends = None if log is None else (log, shown, data.last_stable_offset, shown)
        self.has_replica = False
        """Whether a replica's fetch has waited, to which the log end offset counts."""
        self.parked: dict[Parked, Wanted] = {}

    def has_moved(self, logs: Logs) -> bool:
        """See where the partition ends now; one that is gone, or was made anew, has moved."""
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
    """All parked fetches of a server."""

    def __init__(self, node: Node, logs: Logs) -> None:
        self._store, self._loop, self._logs = node.store, node.loop, logs
        self._spots: dict[_Key, _Spot] = {}
        self._parked: dict[Parked, None] = {}
        self._swept_at = _SWEPT_AT_LEAST
        self._seen = -1  # publications before the last look, or before the last fetch was read
        self._watch = node.loop.watch(self._wake, self.look)
        node.loop.every_turn(self._end_turn)

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, parked: Parked, look: Look, seen: int) -> None:
        """Keep a fetch until it can be answered. `look` is what it has found so far, and `seen` the store's
        publications before that. Raises IllegalStateError where no thread can be started.
        """
        self._sweep()
        if not self._parked:  # else what was published before is not looked for yet
            self._seen = seen
        self._ask()  # first: where no thread can be started, the request fails, and is not parked
        self._parked[parked] = None
        for wanted, data in look.fetched:
            if data.error_code or wanted.topic is None:
                continue
            key = wanted.topic, wanted.partition
            spot = self._spots.get(key)
            if spot is None:
                spot = self._spots[key] = _Spot(key, self._logs, data)
            spot.parked[parked] = wanted
            spot.has_replica = spot.has_replica or parked.terms.replica_id >= 0
            parked.keys.append(key)
        parked.timer = self._loop.later(parked.terms.max_wait_ms / 1000, lambda: self._complete(parked))

    def _ask(self) -> None:
        """Have the thread sleep until something is published that is not seen. Raises IllegalStateError."""
        seen = self._seen
        self._watch.ask(lambda: self._store.wait(seen, _LONGEST_MS))

    def _wake(self) -> None:
        with suppress(SegstoreError):  # closed: then nobody sleeps
            self._store._wake()

    def _end_turn(self) -> None:
        """Look at once for what this turn's requests have appended."""
        if self._parked and self.publications != self._seen:
            self.look()

    def look(self) -> None:
        """Answer the fetches that have enough by now: something was published."""
        if not self._parked:
            return
        self._seen = self.publications  # first: what is published from here on ends the next sleep
        if self._seen < 0:
            for parked in list(self._parked):
                self._complete(parked)
            return
        for spot in list(self._spots.values()):
            if spot.has_moved(self._logs):
                for parked, wanted in list(spot.parked.items()):
                    if parked in self._parked and parked.recount(self._logs, wanted, spot.seen):
                        self._complete(parked)
        if self._parked:
            self._ask()

    @property
    def publications(self) -> int:
        """Return the store's publications, -1 where it is closed."""
        try:
            return self._store.publications
        except SegstoreError:
            return -1

    def _complete(self, parked: Parked) -> None:
        self._drop(parked)
        if parked.request.channel.is_open:
            parked.complete()

    def _drop(self, parked: Parked) -> None:
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
        """Forget fetches of clients that have gone, each time that twice as many are parked as were left."""
        if len(self._parked) < self._swept_at:
            return
        for parked in [each for each in self._parked if not each.request.channel.is_open]:
            self._drop(parked)
        self._swept_at = max(2 * len(self._parked), _SWEPT_AT_LEAST)

    def close(self) -> None:
        """Forget all fetches: the server ends, and their connections with it."""
        for parked in list(self._parked):
            self._drop(parked)
