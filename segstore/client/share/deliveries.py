"""`Deliveries`: acquired records that wait in the consumer's memory for a poll.

On disk: nothing of its own. Threads: one, the consumer's. Records whose acquisition locks have expired are
dropped, because the group delivers them again, to this or another member.
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
"""A partition by the coordinator's name: (topic id, partition number)."""


class TakenRecords(NamedTuple):
    """Records of a partition for the application. `error` is set only if `records` is empty because the first
    record could not be deserialized.
    """

    records: list[ConsumerRecord]
    error: RecordDeserializationError | None = None


class Waiting(Protocol):
    """Records of a partition that were acquired together; their acquisition locks expire at the time `until`
    (monotonic seconds).
    """

    @property
    def tp(self) -> TopicPartition:
        """Return the partition."""

    @property
    def at(self) -> At:
        """Return the partition by the coordinator's name."""

    @property
    def until(self) -> float:
        """Return the time when the acquisition locks expire."""

    def offsets(self) -> list[int]:
        """Return the offsets of the records."""

    def take(self, most: float, deserializers: Deserializers) -> tuple[TakenRecords, Waiting | None]:
        """Return (up to `most` records, rest): `rest` is a new object with the remaining records, or None if
        there are none. `self` is not changed.
        """


class Made(NamedTuple):
    """Records that already are ConsumerRecords, because their locks were renewed, the application gave them
    back, or an iteration has fetched them.
    """

    tp: TopicPartition
    at: At
    records: Sequence[ConsumerRecord]
    until: float

    def offsets(self) -> list[int]:
        """Return the offsets of the records."""
        return [record.offset for record in self.records]

    def take(self, most: float, deserializers: Deserializers) -> tuple[TakenRecords, Waiting | None]:
        """Return (up to `most` records, rest): `rest` has the remaining records, None if there are none."""
        if len(self.records) <= most:
            return TakenRecords(list(self.records)), None
        n = int(most)
        return TakenRecords(list(self.records[:n])), self._replace(records=self.records[n:])


class DeliveredColumns(NamedTuple):
    """Records as columns. `counts` is one delivery count for all records, or a list with a count for each."""

    tp: TopicPartition
    at: At
    records: Records
    counts: Counts
    until: float

    def offsets(self) -> list[int]:
        """Return the offsets of the records."""
        offsets: list[int] = self.records.offsets.tolist()
        return offsets

    def take(self, most: float, deserializers: Deserializers) -> tuple[TakenRecords, Waiting | None]:
        """Return (up to `most` records, rest): `rest` has the remaining records, None if there are none."""
        n = len(self.records) if len(self.records) <= most else int(most)
        part = self._slice(0, n)
        made, error = consumer_records(self.tp, part.records, deserializers, part.counts)
        try:
            done = len(made) + (error is not None and not made)  # a record with an error is taken alone
            rest = self._slice(done, len(self.records)) if done < len(self.records) else None
            return TakenRecords(made, None if made else error), rest
        finally:
            del error  # else a cycle: the error's traceback has this frame

    def _slice(self, begin: int, end: int) -> DeliveredColumns:
        if begin == 0 and end == len(self.records):
            return self
        counts = self.counts[begin:end] if isinstance(self.counts, list) else self.counts
        return self._replace(records=self.records[begin:end], counts=counts)


class PendingError(NamedTuple):
    """An error in the queue of deliveries. A poll raises it once the records before it were returned."""

    error: Exception


class PolledRecords(NamedTuple):
    """The records of one partition in the result of a poll."""

    tp: TopicPartition
    at: At
    records: list[ConsumerRecord]
    until: float


class Deliveries:
    """The waiting records of one share consumer, in the order of their acquisition. `look` does not remove
    the records that it returns; the later `keep` does. After an interrupt between these calls, the next
    `look` returns the same records.
    """

    def __init__(self, deserializers: Deserializers) -> None:
        self._deserializers = deserializers
        self._waiting: deque[Waiting | PendingError] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def are_made(self) -> bool:
        """Return whether the next records are ConsumerRecords already, so that no deserializer is called for
        them.
        """
        return bool(self._waiting) and isinstance(self._waiting[0], Made)

    def add(self, parts: Iterable[Waiting | PendingError]) -> None:
        """Add acquired records."""
        self._waiting.extend(parts)

    def put_back(self, parts: Sequence[Waiting]) -> None:
        """Put records of the last poll back at the head of the queue."""
        self._waiting.extendleft(reversed(parts))

    def clear(self) -> None:
        """Drop all waiting records and errors."""
        self._waiting.clear()

    def parts(self) -> list[Waiting]:
        """Return the waiting records."""
        return [part for part in self._waiting if not isinstance(part, PendingError)]

    def look(self, most: float) -> tuple[list[PolledRecords], deque[Waiting | PendingError]]:
        """Return up to `most` records, and the queue without these records. The caller passes the queue to
        `keep` once the application has the records. Raises the next error in the queue, unless there are
        records before it.
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
                    del error  # else a cycle: the error's traceback has this frame
            if rest is not None:
                waiting.appendleft(rest)
            most -= len(records)
            given.append(PolledRecords(part.tp, part.at, records, part.until))
            if rest is not None and most > 0:
                break  # the next record can't be deserialized: the next `look` raises its error
        if not given:
            self._waiting = waiting  # removes the expired records
        return given, waiting

    def keep(self, waiting: deque[Waiting | PendingError]) -> None:
        """Store the queue that the last look returned, because the application now has the records."""
        self._waiting = waiting

    def replace(self, first: Iterable[Waiting], others: Iterable[Waiting | PendingError]) -> None:
        """Replace the queue by `first` and then `others`."""
        self._waiting = deque([*first, *others])


class Undelivered(Exception):
    """Raised for a record that could not be deserialized; `error` has its offset."""

    def __init__(self, tp: TopicPartition, at: At, until: float, error: RecordDeserializationError) -> None:
        super().__init__(error)
        self.tp, self.at, self.until, self.error = tp, at, until, error
