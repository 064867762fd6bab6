"""`ShareWaits`: share fetches that wait until records become available, or their time is over (KIP-932;
Kafka: DelayedShareFetch, DelayedShareFetchGroupKey, DelayedShareFetchPartitionKey).

Nothing is on disk. Threads: the loop's; a share group tells in any thread that records became available.

A fetch waits for two kinds of news: its partitions have moved, which the purgatory of all fetches sees, and
records of its group became available again, which the share group tells. A fetch acquires in a worker thread:
news of that time is found by comparing a `AcquirableState` from before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from segstore.errors import SegstoreError
from segstore.protocol.codec import structs
from segstore.server.fetching.purgatory import Awaited, Parked, Purgatory
from segstore.server.fetching.reading import Terms
from segstore.server.fetching.sessions import Wanted
from segstore.server.logs import Logs
from segstore.server.node import NodeLoop
from segstore.server.request import Request

_Partition = structs("FetchRequest").FetchPartition
NamedPartition = tuple[str, int]
"""A topic's name, and a partition."""


class Listening(Protocol):
    """A call that is made when records became available, until it is cancelled."""

    def cancel(self) -> None:
        """Make no more calls."""


class AvailableRecords(Protocol):
    """Tells of records that became available; see `ShareCoordinator`."""

    def on_available(self, group: str, call: Callable[[], object], /) -> Listening:
        """Have `call` called, in any thread, when records of a group became available."""


class AcquirableState(NamedTuple):
    """What a fetch could acquire at a time: the publications of the store, how often the group had told of
    records, and the ends of the partitions.
    """

    publications: int
    told: int
    ends: Sequence[Awaited]

    def differs(self, before: AcquirableState, is_sated: bool = False) -> bool:
        """Return whether there was news since a glance from `before`; see `ShareWaits.park`."""
        if (self.told != before.told and not is_sated) or len(self.ends) != len(before.ends):
            return True
        return any(now[1:] != then[1:] for now, then in zip(self.ends, before.ends, strict=True))


class ParkedShareFetch(Parked):
    """A share fetch that waits, for `wait_ms` at most. Any move of a partition is a reason to acquire again:
    which bytes a member may have is known only to its group.
    """

    def __init__(self, request: Request, wait_ms: int, complete: Callable[[], None]) -> None:
        terms = Terms(request.version, -1, False, wait_ms, 1, 0)
        super().__init__(request, terms, {}, complete)

    def recount(self, *_moved: Any) -> bool:
        """Return that the fetch is to be looked at."""
        return True


class _WaitingGroup:
    """The fetches of a share group that wait, and how often the group has told of records."""

    def __init__(self) -> None:
        self.told = 0
        self.parked: dict[ParkedShareFetch, None] = {}
        self.listening: Listening | None = None


class ShareWaits:
    """The waits of all share fetches of a server. `expired` counts the fetches whose time has passed (Kafka:
    DelayedShareFetchMetrics ExpiresPerSec).
    """

    def __init__(self, loop: NodeLoop, purgatory: Purgatory, logs: Logs) -> None:
        self._loop, self._purgatory, self._logs = loop, purgatory, logs
        self._groups: dict[str, _WaitingGroup] = {}
        self.expired = 0

    def __len__(self) -> int:
        return sum(len(group.parked) for group in self._groups.values())

    def attend(self, group: str, coordinator: AvailableRecords) -> None:
        """Begin to listen to a group, before its first fetch."""
        if group not in self._groups:
            held = self._groups[group] = _WaitingGroup()
            tell = partial(self._loop.soon, partial(self._available, held))
            held.listening = coordinator.on_available(group, tell)

    def forget(self, group: str) -> None:
        """Listen to a group no more: it has no session here."""
        held = self._groups.pop(group, None)
        if held is not None and held.listening is not None:
            held.listening.cancel()

    def glance(self, group: str, partitions: Sequence[NamedPartition]) -> AcquirableState:
        """Return what there is now; a partition that is gone has no ends."""
        publications = self._purgatory.publications  # first: later ones are news
        held = self._groups.get(group)
        told = -1 if held is None else held.told
        return AcquirableState(publications, told, [self._ends(each) for each in partitions])

    def _ends(self, partition: NamedPartition) -> Awaited:
        topic, number = partition
        wanted = Wanted(topic, b"", _Partition(partition=number))
        try:
            log = self._logs.find(topic, number)
            return Awaited(wanted, log.high_watermark, log.last_stable_offset)
        except SegstoreError:
            return Awaited(wanted, -1, -1)

    def park(
        self, group: str, parked: ParkedShareFetch, glance: AcquirableState, is_sated: bool = False
    ) -> None:
        """Keep a fetch that has found nothing since a glance. `Parked.complete` is called when there is news,
        or when the time is over. Raises IllegalStateError if no thread can be started.

        `is_sated`: the fetch has given records back, which were too few. It listens to its partitions alone:
        two such fetches would wake each other for ever.
        """
        held, complete = self._groups[group], parked.complete

        def go_on() -> None:
            held.parked.pop(parked, None)
            self.expired += parked.is_over
            complete()

        parked.complete = go_on
        self._purgatory.park(parked, glance.ends, glance.publications)
        if not is_sated:
            held.parked[parked] = None

    def finish(self, group: str, parked: ParkedShareFetch) -> None:
        """End the wait of a fetch, which is answered if its client is there still."""
        if group in self._groups:
            self._groups[group].parked.pop(parked, None)
        self._purgatory.complete(parked)

    def _available(self, held: _WaitingGroup) -> None:
        """Have the fetches of a group look again, those first that have waited longest."""
        held.told += 1
        for parked in list(held.parked):
            if parked in held.parked:
                self._purgatory.complete(parked)

    def close(self) -> None:
        """Listen to no group any more: the server ends."""
        for group in list(self._groups):
            self.forget(group)
