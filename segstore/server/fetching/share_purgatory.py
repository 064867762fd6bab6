"""`ShareWaits`: share fetches that wait until records are available or a fetch's wait times out (KIP-932;
Kafka: DelayedShareFetch, DelayedShareFetchGroupKey, DelayedShareFetchPartitionKey).

Owns nothing on disk. Threads: the loop's thread; a share group reports available records in any thread.

A fetch waits for one of two events: its partitions get new records, which `Purgatory` detects, or acquired
records become available again, which the share group reports. An event may come between the attempt to
acquire records and the beginning of the wait. To detect such an event, the handler compares the
`AcquirableState` from before the attempt with the current state.
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
"""(topic name, partition)."""


class Listening(Protocol):
    """The registration of a function that is called when records become available."""

    def cancel(self) -> None:
        """Remove the registration, so that the function is not called any more."""


class AvailableRecords(Protocol):
    """A source of reports that records become available. `ShareCoordinator` implements this protocol."""

    def on_available(self, group: str, call: Callable[[], object], /) -> Listening:
        """Call `call`, in any thread, whenever records of a group become available."""


class AcquirableState(NamedTuple):
    """As long as `reports` and `ends` are the same, a share fetch can't acquire more records. `reports` is
    the number of times that the group has reported available records. `ends` are the partitions with their
    high watermarks and last stable offsets. `publications` is the number of the store's publications before
    `ends` was read.
    """

    publications: int
    reports: int
    ends: Sequence[Awaited]

    def differs(self, before: AcquirableState, is_sated: bool = False) -> bool:
        """Return whether `ends` or `reports` differ from `before`. If `is_sated`, only `ends` are
        compared.
        """
        if (self.reports != before.reports and not is_sated) or len(self.ends) != len(before.ends):
            return True
        return any(now[1:] != then[1:] for now, then in zip(self.ends, before.ends, strict=True))


class ParkedShareFetch(Parked):
    """A share fetch that waits for at most `wait_ms`. If one of its partitions changes, the fetch tries to
    acquire records again, because the purgatory can't know which records the group would deliver.
    """

    def __init__(self, request: Request, wait_ms: int, complete: Callable[[], None]) -> None:
        terms = Terms(request.version, -1, False, wait_ms, 1, 0)
        super().__init__(request, terms, {}, complete)

    def recount(self, *_moved: Any) -> bool:
        """Return True: any change of a partition completes the fetch."""
        return True


class _WaitingGroup:
    """The waiting fetches of a share group, and the number of times that the group has reported available
    records.
    """

    def __init__(self) -> None:
        self.reports = 0
        self.parked: dict[ParkedShareFetch, None] = {}
        self.listening: Listening | None = None


class ShareWaits:
    """The waiting share fetches of a server. `expired` counts fetches whose wait has timed out (Kafka:
    DelayedShareFetchMetrics ExpiresPerSec).
    """

    def __init__(self, loop: NodeLoop, purgatory: Purgatory, logs: Logs) -> None:
        self._loop, self._purgatory, self._logs = loop, purgatory, logs
        self._groups: dict[str, _WaitingGroup] = {}
        self.expired = 0

    def __len__(self) -> int:
        return sum(len(group.parked) for group in self._groups.values())

    def attend(self, group: str, coordinator: AvailableRecords) -> None:
        """Begin to receive the reports of a group. Called before the group's first fetch."""
        if group not in self._groups:
            held = self._groups[group] = _WaitingGroup()
            report = partial(self._loop.soon, partial(self._available, held))
            held.listening = coordinator.on_available(group, report)

    def forget(self, group: str) -> None:
        """Stop receiving the reports of a group. Called when the group has no session any more."""
        held = self._groups.pop(group, None)
        if held is not None and held.listening is not None:
            held.listening.cancel()

    def glance(self, group: str, partitions: Sequence[NamedPartition]) -> AcquirableState:
        """Return the current state. A missing partition has -1 as its high watermark and last stable
        offset.
        """
        # This number is read before the partitions' offsets. A publication between the two reads is then a
        # later publication, which ends the wait.
        publications = self._purgatory.publications
        held = self._groups.get(group)
        reports = -1 if held is None else held.reports
        return AcquirableState(publications, reports, [self._ends(each) for each in partitions])

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
        """Make a fetch wait that has acquired too few records. `glance` is the state that was read before
        the fetch tried to acquire records. `parked.complete` is called after a change of the state, or when
        the wait times out. Raises IllegalStateError if no thread can be started.

        `is_sated` says that the fetch has acquired records, and released them because they had fewer bytes
        than min_bytes. In this case the group's reports don't end the wait: each release is reported, so two
        such fetches would wake each other for ever.
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
        """Remove a waiting fetch, and call its `complete` if its connection is open."""
        if group in self._groups:
            self._groups[group].parked.pop(parked, None)
        self._purgatory.complete(parked)

    def _available(self, held: _WaitingGroup) -> None:
        """Complete a group's waiting fetches, the oldest fetch first, because the records that the group can
        acquire may have changed.
        """
        held.reports += 1
        for parked in list(held.parked):
            if parked in held.parked:
                self._purgatory.complete(parked)

    def close(self) -> None:
        """Stop receiving reports, because the server is being closed."""
        for group in list(self._groups):
            self.forget(group)
