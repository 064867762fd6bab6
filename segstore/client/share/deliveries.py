"""`Deliveries`: the acquired records that wait in the consumer's memory until a poll returns them.

On disk: nothing of its own. Threads: one, the consumer's. A record is dropped if its acquisition lock has
expired, because the group delivers it again, to this or another member.
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
"""A partition, as the coordinator identifies it: (topic id, partition number)."""


class TakenRecords(NamedTuple):
    """Records of a partition for the application. If the first record could not be deserialized, `records` is
    empty, and `error` is the reason. If the first record could be deserialized, `error` is None.
    """

    records: list[ConsumerRecord]
    error: RecordDeserializationError | None = None


class Waiting(Protocol):
    """Records of a partition that were acquired together. Their acquisition locks expire at the time `until`
    (monotonic seconds).
    """

    @property
    def tp(self) -> TopicPartition:
        """Return the partition, with the topic's name."""

    @property
    def at(self) -> At:
        """Return the partition, with the topic's id."""

    @property
    def until(self) -> float:
        """Return the time when the acquisition locks expire."""

    def offsets(self) -> list[int]:
        """Return the offsets of the records."""

    def take(self, most: float, deserializers: Deserializers) -> tuple[TakenRecords, Waiting | None]:
        """Return (up to `most` records, a new object with the remaining records). The object is None if no
        records remain. `self` is not changed.
        """


class Made(NamedTuple):
    """Records that already are ConsumerRecords: their locks were renewed, a cancelled call of an
    AsyncShareConsumer had returned them, or an iteration has fetched them.
    """

    tp: TopicPartition
    at: At
    records: Sequence[ConsumerRecord]
    until: float

    def offsets(self) -> list[int]:
        """Return the offsets of the records."""
        return [record.offset for record in self.records]

    def take(self, most: float, deserializers: Deserializers) -> tuple[TakenRecords, Waiting | None]:
        """Return (up to `most` records, remaining records or None). None means that no records remain."""
        if len(self.records) <= most:
            return TakenRecords(list(self.records)), None
        n = int(most)
        return TakenRecords(list(self.records[:n])), self._replace(records=self.records[n:])


class DeliveredColumns(NamedTuple):
    """Records as columns. `counts` is one delivery count for all records, or a list with the count of each
    record.
    """

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
        """Return (up to `most` records, remaining records or None). None means that no records remain."""
        n = len(self.records) if len(self.records) <= most else int(most)
        part = self._slice(0, n)
        made, error = consumer_records(self.tp, part.records, deserializers, part.counts)
        try:
            # If the first record can't be deserialized, only this record is taken, with the error. If a later
            # record can't be deserialized, the records before it are taken without the error.
            done = len(made) + (error is not None and not made)
            rest = self._slice(done, len(self.records)) if done < len(self.records) else None
            return TakenRecords(made, None if made else error), rest
        finally:
            # The traceback of the error refers to this frame, which refers to the error: `del` breaks this
            # cycle.
            del error

    def _slice(self, begin: int, end: int) -> DeliveredColumns:
        if begin == 0 and end == len(self.records):
            return self
        counts = self.counts[begin:end] if isinstance(self.counts, list) else self.counts
        return self._replace(records=self.records[begin:end], counts=counts)


class PendingError(NamedTuple):
    """An error in the queue of deliveries. After the records before the error were returned, a poll raises
    it.
    """

    error: Exception


class PolledRecords(NamedTuple):
    """The records of one partition in the result of a poll."""

    tp: TopicPartition
    at: At
    records: list[ConsumerRecord]
    until: float


class Deliveries:
    """The waiting records of one share consumer, in the order in which they were acquired. `look` returns
    records and does not remove them; the later `keep` removes them. After an interrupt between these calls,
    the next `look` returns the same records.
    """

    def __init__(self, deserializers: Deserializers) -> None:
        self._deserializers = deserializers
        self._waiting: deque[Waiting | PendingError] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def are_made(self) -> bool:
        """Return whether the next records are ConsumerRecords already. If so, no deserializer is called for
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
        """Return (up to `most` records, the queue without these records). The caller must pass the queue to
        `keep` as soon as the application has the records. Raises the error that is next in the queue, if
        there is one. Raises Undelivered if the next record can't be deserialized.
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
                    # The traceback of the error refers to this frame, which refers to the error: `del` breaks
                    # this cycle.
                    del error
            if rest is not None:
                waiting.appendleft(rest)
            most -= len(records)
            given.append(PolledRecords(part.tp, part.at, records, part.until))
            if rest is not None and most > 0:
                # The next record can't be deserialized: the next `look` raises the error.
                break
        if not given:
            # `waiting` has no expired records any more.
            self._waiting = waiting
        return given, waiting

    def keep(self, waiting: deque[Waiting | PendingError]) -> None:
        """Store the queue that the last `look` returned, because the application now has the records."""
        self._waiting = waiting

    def replace(self, first: Iterable[Waiting], others: Iterable[Waiting | PendingError]) -> None:
        """Replace the queue by a new one: `first`, followed by `others`."""
        self._waiting = deque([*first, *others])


class Undelivered(Exception):
    """Raised for a record that could not be deserialized; `error` has its offset."""

    def __init__(self, tp: TopicPartition, at: At, until: float, error: RecordDeserializationError) -> None:
        super().__init__(error)
        self.tp, self.at, self.until, self.error = tp, at, until, error
