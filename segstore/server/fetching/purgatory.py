"""`Purgatory`: fetches that wait until there are enough bytes for them, or their time is over (Kafka:
DelayedFetch and its purgatory).

Nothing is on disk. Threads: the loop's. A parked fetch keeps no bytes and no file, only what it asked for.
Partitions are watched one by one, however many fetches wait for each: after a publication each partition is
looked at once, and only fetches of those that have moved are counted again.

What is appended by requests is seen at the end of the loop's turn; a thread of the loop's that sleeps in
`Store.wait`, only while a fetch is parked, tells of what other threads and processes publish. Where a standby
is in sync mode, C publishes nothing by itself: then each publication wakes the loop, without that thread.
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
"""A partition's log, its high watermark, its last stable offset, and its log end offset, which is looked for
only where a replica waits; None where it is gone.
"""
_SWEPT_AT_LEAST = 64
_LONGEST_MS = 3_600_000.0


class Awaited(NamedTuple):
    """A partition that a fetch waits for, of which it was told high watermark and last stable offset."""

    wanted: Wanted
    high_watermark: int
    last_stable_offset: int


def awaited(look: Look) -> list[Awaited]:
    """Return the partitions of a look that may get more."""
    return [
        Awaited(wanted, data.high_watermark, data.last_stable_offset)
        for wanted, data in look.fetched
        if not data.error_code and wanted.topic is not None
    ]


class Parked:
    """A fetch that waits. `complete` answers it, and raises nothing; `sizes` are the bytes that its
    partitions have so far, where they have any. `is_over`: its time has passed.
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


class DelayedStandbyFetch(Protocol):
    """A fetch of a standby that has all there is, which says by itself when it has moved. `timer` and `until`
    are the purgatory's.
    """

    timer: Timer | None
    until: float

    @property
    def is_open(self) -> bool:
        """Return whether the client is there still."""

    def has_moved(self) -> bool:
        """Return whether there is an answer now."""

    def answer(self) -> None:
        """Answer the fetch, which waits no more. Raises nothing."""


class _Spot:
    """A partition that parked fetches wait for: its log, and the ends that it had when they were counted."""

    __slots__ = ("has_replica", "key", "parked", "seen")

    def __init__(self, key: _Key, logs: Logs, told: Awaited) -> None:
        self.key, log = key, _log(logs, key)
        shown = told.high_watermark
        self.seen: _Ends = None if log is None else (log, shown, told.last_stable_offset, shown)
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
        self._standing: dict[DelayedStandbyFetch, None] = {}
        self._swept_at = _SWEPT_AT_LEAST
        self._seen = -1  # publications before the last look, or before the last fetch was read
        self._watch = node.loop.watch(self._wake, self.look)
        node.loop.every_turn(self._end_turn)
        self._primary, self._thread = primary_of(node), -1
        self._is_told = False
        """Whether `_published` hears of all that is published; else the watch sleeps."""
        if isinstance(side := node.store.engine, StoreWriter):
            side.tell_of_publications(self._published)

    def __len__(self) -> int:
        return len(self._parked) + len(self._standing)

    def park(self, parked: Parked, waits: Iterable[Awaited], seen: int) -> None:
        """Keep a fetch until it can be answered. `waits` says for which partitions, and `seen` are the
        store's publications before they were looked at. Raises IllegalStateError where no thread can be
        started.
        """
        if len(self._parked) >= self._swept_at:
            self._sweep()
        self._begin(seen)
        self._parked[parked] = None
        of_replica = parked.terms.replica_id >= 0
        for told in waits:
            wanted = told.wanted
            key = wanted.topic or "", wanted.partition
            spot = self._spots.get(key)
            if spot is None:
                spot = self._spots[key] = _Spot(key, self._logs, told)
            spot.parked[parked] = wanted
            spot.has_replica = spot.has_replica or of_replica
            parked.keys.append(key)
        parked.timer = self._loop.later(parked.terms.max_wait_ms / 1000, lambda: self._over(parked))

    def _over(self, parked: Parked) -> None:
        parked.is_over = True
        self.complete(parked)

    def _begin(self, seen: int) -> None:
        """Begin to wait: first, since where no thread can be started, the request fails."""
        if not (self._parked or self._standing):  # else what was published before is not looked for yet
            self._seen, self._thread = seen, threading.get_ident()
        self._ask()

    def stand(self, standing: DelayedStandbyFetch, seen: int, seconds: float) -> None:
        """Do what `park` does with a standby's fetch, for so long. The timer of the one before is taken over:
        most end soon.
        """
        self._begin(seen)
        self._standing[standing] = None
        standing.until = time.monotonic() + seconds
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
        """Have the thread sleep until something is published that is not seen, where nobody else would tell.
        Raises IllegalStateError.
        """
        self._is_told = self._primary is not None and self._primary.registration.sync
        if not self._is_told:
            seen = self._seen
            self._watch.ask(lambda: self._store.wait(seen, _LONGEST_MS))

    def _published(self) -> None:
        """Have the loop look for what another thread has published: any calls this. What is published before
        a fetch is parked is seen at the end of the turn.
        """
        if self._is_told and (self._parked or self._standing) and threading.get_ident() != self._thread:
            self._loop.soon(self._end_turn)

    def _wake(self) -> None:
        with suppress(SegstoreError):  # closed: then nobody sleeps
            self._store.wake()

    def _end_turn(self) -> None:
        """Look at once for what this turn's requests have appended."""
        if (self._parked or self._standing) and self.publications != self._seen:
            self.look()

    def look(self) -> None:
        """Answer the fetches that have enough by now: something was published."""
        if not (self._parked or self._standing):
            return
        self._seen = self.publications  # first: what is published from here on ends the next sleep
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
        """Return the store's publications, -1 where it is closed."""
        store = self._store
        try:
            return -1 if store.context.closed else store.engine.publications
        except SegstoreError:
            return -1

    def complete(self, parked: Parked) -> None:
        """End the wait of a fetch, and answer it if its client is there still."""
        self.drop(parked)
        if parked.request.channel.is_open:
            parked.complete()

    def drop(self, parked: Parked) -> None:
        """Forget a fetch, without an answer."""
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
        """Forget fetches of clients that have gone: this is called each time that twice as many are parked as
        were left.
        """
        for parked in [each for each in self._parked if not each.request.channel.is_open]:
            self.drop(parked)
        self._swept_at = max(2 * len(self._parked), _SWEPT_AT_LEAST)

    def close(self) -> None:
        """Forget all fetches: the server ends, and their connections with it."""
        for parked in list(self._parked):
            self.drop(parked)
        for standing in self._standing:
            if standing.timer is not None:
                standing.timer.cancel()
        self._standing.clear()
        if isinstance(side := self._store.engine, StoreWriter):
            side.tell_no_more(self._published)
