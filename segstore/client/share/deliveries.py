"""`Deliveries`: acquired records that wait in the consumer's memory for a poll to give them.

On disk: nothing of its own. Threads: one, the consumer's. Records whose acquisition locks have run out are
dropped: they are delivered again, here or to another member.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from segstore.client.consumer.records import ConsumerRecord, Counts, Deserializers, consumer_records
from segstore.coordinator.structs import TopicPartition
from segstore.errors import RecordDeserializationError, copy_of
from segstore.records import Records

At = tuple[str, int]
"""A partition as the coordinator names it: the id of its topic, and its number."""


class TakenRecords(NamedTuple):
    """Records of a partition for the application; `error` is that of the record after them."""

    records: list[ConsumerRecord]
    error: RecordDeserializationError | None = None


class Waiting(Protocol):
    """Records of a partition that were acquired together, until the time `until` (monotonic seconds)."""

    @property
    def tp(self) -> TopicPartition:
        """Return the partition."""

    @property
    def at(self) -> At:
        """Return the partition as the coordinator names it."""

    @property
    def until(self) -> float:
        """Return when the acquisition locks run out."""

    def offsets(self) -> list[int]:
        """Return the offsets of the records."""

    def take(self, most: float, deserializers: Deserializers) -> tuple[TakenRecords, Waiting | None]:
        """Return up to `most` records, and what waits after them; neither is changed."""


class Made(NamedTuple):
    """Records that the application has had before, as they were made then."""

    tp: TopicPartition
    at: At
    records: Sequence[ConsumerRecord]
    until: float

    def offsets(self) -> list[int]:
        """See `Waiting`."""
        return [record.offset for record in self.records]

    def take(self, most: float, deserializers: Deserializers) -> tuple[TakenRecords, Waiting | None]:
        """See `Waiting`."""
        if len(self.records) <= most:
            return TakenRecords(list(self.records)), None
        n = int(most)
        return TakenRecords(list(self.records[:n])), self._replace(records=self.records[n:])


class DeliveredColumns(NamedTuple):
    """Records as they were read, with the delivery count of all, or of each."""

    tp: TopicPartition
    at: At
    records: Records
    counts: Counts
    until: float

    def offsets(self) -> list[int]:
        """See `Waiting`."""
        found: list[int] = self.records.offsets.tolist()
        return found

    def take(self, most: float, deserializers: Deserializers) -> tuple[TakenRecords, Waiting | None]:
        """See `Waiting`."""
        n = len(self.records) if len(self.records) <= most else int(most)
        part = self._slice(0, n)
        made, error = consumer_records(self.tp, part.records, deserializers, part.counts)
        try:
            done = len(made) + (error is not None and not made)  # a bad record comes alone
            rest = self._slice(done, len(self.records)) if done < len(self.records) else None
            return TakenRecords(made, None if made else error), rest
        finally:
            del error  # the deserializer's error has this frame in its traceback

    def _slice(self, begin: int, end: int) -> DeliveredColumns:
        if begin == 0 and end == len(self.records):
            return self
        counts = self.counts[begin:end] if isinstance(self.counts, list) else self.counts
        return self._replace(records=self.records[begin:end], counts=counts)


class PendingError(NamedTuple):
    """An error that the next poll raises, in its turn."""

    error: Exception


class PolledRecords(NamedTuple):
    """What a poll gives of a partition."""

    tp: TopicPartition
    at: At
    records: list[ConsumerRecord]
    until: float


class Deliveries:
    """Gives what waits in the order in which it came. A look changes nothing before it is done with a part:
    after an interrupt the next look gives the same records.
    """

    def __init__(self, deserializers: Deserializers) -> None:
        self._deserializers = deserializers
        self._waiting: deque[Waiting | PendingError] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def are_made(self) -> bool:
        """Return whether the next records are made already, so that no deserializer is called for them."""
        return bool(self._waiting) and isinstance(self._waiting[0], Made)

    def add(self, parts: Iterable[Waiting | PendingError]) -> None:
        """Add what was acquired."""
        self._waiting.extend(parts)

    def put_back(self, parts: Sequence[Waiting]) -> None:
        """Put records that the last poll gave before all others."""
        self._waiting.extendleft(reversed(parts))

    def clear(self) -> None:
        """Forget all that waits."""
        self._waiting.clear()

    def parts(self) -> list[Waiting]:
        """Return the records that wait."""
        return [part for part in self._waiting if not isinstance(part, PendingError)]

    def look(self, most: float) -> tuple[list[PolledRecords], deque[Waiting | PendingError]]:
        """Return up to `most` records, and what then waits; the caller `keep`s that once the application has
        the records. Raises the error that is next, unless there are records before it.
        """
        given: list[PolledRecords] = []
        waiting, now = self._waiting.copy(), time.monotonic()
        while waiting and most > 0:
            part = waiting.popleft()
            if isinstance(part, PendingError):
                if given:
                    waiting.appendleft(part)
                    break
                self._waiting = waiting
                raise copy_of(part.error)
            if part.until <= now:
                continue
            (records, error), rest = part.take(most, self._deserializers)
            if error is not None:
                try:
                    if given:
                        waiting.appendleft(part)
                        break
                    if rest is not None:
                        waiting.appendleft(rest)
                    self._waiting = waiting
                    raise Undelivered(part.tp, part.at, part.until, error)
                finally:
                    del error  # the deserializer's error has this frame in its traceback
            if rest is not None:
                waiting.appendleft(rest)
            most -= len(records)
            given.append(PolledRecords(part.tp, part.at, records, part.until))
            if rest is not None and most > 0:
                break  # a record that can't be deserialized is next
        if not given:
            self._waiting = waiting  # without what was dropped
        return given, waiting

    def keep(self, waiting: deque[Waiting | PendingError]) -> None:
        """Note that the application has what the last look gave."""
        self._waiting = waiting

    def replace(self, first: Iterable[Waiting], others: Iterable[Waiting | PendingError]) -> None:
        """Have these wait in place of all that waited."""
        self._waiting = deque([*first, *others])


class Undelivered(Exception):
    """A record could not be deserialized: `error` says which."""

    def __init__(self, tp: TopicPartition, at: At, until: float, error: RecordDeserializationError) -> None:
        super().__init__(error)
        self.tp, self.at, self.until, self.error = tp, at, until, error
