"""Appends records to a cluster with librdkafka's producer, and reads records with librdkafka's consumer.

Nothing is on disk. Threads: one. librdkafka sends and fetches in its own threads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, repeat
from typing import TYPE_CHECKING, Any, overload

import click

from segstore.cli.places.client import ClusterClients
from segstore.cli.places.cluster_offsets import ClusterLog
from segstore.cli.places.refusals import Refusals
from segstore.coordinator.structs import TopicPartition
from segstore.errors import InvalidArgumentError, copy_of
from segstore.integers import INT64_MAX
from segstore.records import as_headers
from segstore.records.records import Record

if TYPE_CHECKING:
    from typing_extensions import Self

_STEP = 0.2
"""The longest time in seconds of one call of librdkafka. Python can handle signals only between two calls."""
_LAST_WORDS = 5.0
"""The longest time in seconds that the client waits for answers to sent records after an interrupt or an
error.
"""
_AT_ONCE = 10_000
_MOST_BYTES = 1_000_000_000
"""The largest value that librdkafka allows for message.max.bytes. With it, only the broker limits the size of
records.
"""
_LONGEST_MS = 120_000
"""The time-out for the delivery of a record (Kafka: delivery.timeout.ms), and for a read of a cluster that
does not answer.
"""
_REMINDS = 10.0
"""Seconds after which a line about a lost connection may be printed again."""


class ClusterAppends:
    """Appends records to a cluster: implements `Appends`. The producer is idempotent and uses acks=all,
    unless the user's settings differ.
    """

    def __init__(self, client: ClusterClients, topic: str, compression: str | None, batch_bytes: int) -> None:
        settings: dict[str, Any] = {
            "batch_size": batch_bytes,
            "message_max_bytes": _MOST_BYTES,
            "message_timeout_ms": _LONGEST_MS,
        }
        if compression is not None:
            settings["compression_type"] = compression
        self.records = self.bytes = self.unknown = 0
        self._client, self._topic = client, topic
        self._refusals = Refusals(self._report)
        self._producer = client.made(
            client.kafka.Producer,
            self._refusals.logger,
            enable_idempotence=True,
            debug=self._refusals.debug,
            **settings,
        )
        self._failed: Exception | None = None

    def append(self, partition: int, values: Any, keys: Any, timestamps: Any, headers: Any) -> None:
        produce, topic = self._producer.produce, self._topic
        for value, key, stamp, held in zip(
            _cells(values), _cells(keys), _stamps(timestamps), _headers(headers), strict=False
        ):
            size = len(value or b"") + len(key or b"")

            def answered(error: Any, _message: Any, size: int = size) -> None:
                self._answered(error, size, partition)

            while True:
                try:
                    produce(topic, value, key, partition, answered, timestamp=stamp, headers=held)
                    break
                except BufferError:  # The queue of librdkafka is full.
                    self._poll(_STEP)
                except self._client.kafka.KafkaException as error:
                    raise self._client.error(f"{topic}-{partition}", error) from None
        self._poll(0)

    def _answered(self, error: Any, size: int, partition: int) -> None:
        if error is None:
            self._refusals.acknowledged()
            self.records += 1
            self.bytes += size
            return
        kinds = self._client.kafka.KafkaError
        if error.code() in (kinds._PURGE_INFLIGHT, kinds._MSG_TIMED_OUT):
            self.unknown += 1
        if error.code() not in (kinds._PURGE_INFLIGHT, kinds._PURGE_QUEUE) and self._failed is None:
            self._failed = self._client.error(f"{self._topic}-{partition}", error)

    def _report(self, line: str) -> None:
        click.echo(f"segstore: {self._client.bootstrap}: {line}: trying again", err=True)

    def _poll(self, seconds: float) -> None:
        """Call `poll` of librdkafka, which reports answers. If a record has failed, raise ClusterError for
        the first such record.
        """
        self._producer.poll(seconds)
        if self._failed is not None:
            raise copy_of(self._failed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            while self._producer.flush(_STEP):
                self._poll(0)
            self._poll(0)
            return
        self._producer.purge(in_queue=True, in_flight=False)
        end = time.monotonic() + _LAST_WORDS
        while self._producer.flush(_STEP) and time.monotonic() < end:
            continue
        self._producer.purge()
        self._producer.flush(_STEP)


def _cells(column: Any) -> Iterable[bytes | None]:
    """Return a column's values. Text of an Arrow column is encoded as UTF-8."""
    if column is None:
        return repeat(None)
    held = column if isinstance(column, list) else column.to_pylist()
    return (each.encode() if isinstance(each, str) else each for each in held)


def _stamps(timestamps: list[int] | None) -> Iterable[int]:
    """Return timestamps for librdkafka's client, which takes 0 as the current time. Raises
    InvalidArgumentError if a time is before 1970.
    """
    if timestamps is None:
        return repeat(0)
    if any(each <= 0 for each in timestamps):
        wrong = next(each for each in timestamps if each <= 0)
        raise InvalidArgumentError(f"timestamp {wrong}: with --bootstrap a time must lie after 1970 began")
    return timestamps


def _headers(column: Any) -> Iterable[Sequence[tuple[str, bytes | None]] | None]:
    """Return the headers of each record. `column` is a list or an Arrow column. Raises InvalidTypeError,
    InvalidArgumentError.
    """
    if column is None or isinstance(column, list):
        return column or repeat(None)
    as_headers(column)
    return ([(h["key"], h["value"]) for h in each or ()] for each in column.to_pylist())


# --- reading ----------------------------------------------------------------------------------


class Messages(Sequence[Record]):
    """Records that a consumer has read: implements `Batch`."""

    def __init__(self, records: list[Record]) -> None:
        self._records = records

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self._records]

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Messages: ...
    def __getitem__(self, index: int | slice) -> Record | Messages:
        return Messages(self._records[index]) if isinstance(index, slice) else self._records[index]


class Outage:
    """Measures an outage: the time in which a client gets connection errors and no answer. An outage may last
    `longest` seconds.
    """

    def __init__(self, client: ClusterClients, longest: float) -> None:
        self.longest, self.trouble = longest, ""
        self._client = client
        self._since: float | None = None
        self._printed = (-math.inf, "")

    def look(self) -> None:
        """Print the client's latest connection error, unless the same error was printed within the last
        _REMINDS seconds.
        """
        if not (trouble := self._client.calm()):
            return
        now, (at, before) = time.monotonic(), self._printed
        self._since = now if self._since is None else self._since
        self.trouble = trouble
        if trouble != before or now - at >= _REMINDS:
            self._printed = (now, trouble)
            click.echo(f"segstore: {self._client.bootstrap}: {trouble}; trying again", err=True)

    def end(self) -> None:
        """End the outage, because the cluster has answered."""
        self._client.calm()
        self._since, self.trouble, self._printed = None, "", (-math.inf, "")

    def is_too_long(self) -> bool:
        return self._since is not None and time.monotonic() - self._since > self.longest


class ClusterReading:
    """Reads records with a consumer that joins no group and commits no offsets: implements `PlaceReading`."""

    def __init__(
        self, client: ClusterClients, topic: str, partitions: Sequence[int], isolation_level: str
    ) -> None:
        self.logs = {number: ClusterLog(client, TopicPartition(topic, number)) for number in partitions}
        self._client, self._topic = client, topic
        self._positions = dict.fromkeys(partitions, 0)
        self._ends: dict[int, int] = {}
        self._consumer = client.made(
            client.kafka.Consumer,
            group_id="segstore-consume",
            enable_auto_commit=False,
            enable_partition_eof=True,
            auto_offset_reset="error",
            isolation_level=isolation_level,
        )

    def seek(self, partition: int, offset: int, end: int | None = None) -> None:
        self._positions[partition] = offset
        self._ends[partition] = INT64_MAX if end is None else end

    def drain(self) -> Iterator[tuple[int, Messages]]:
        for number, log in self.logs.items():
            end = min(log.end_offset, self._ends.get(number, INT64_MAX))
            if self._positions[number] < end:
                yield from self._until(number, end)

    def _until(self, number: int, end: int) -> Iterator[tuple[int, Messages]]:
        self._assign([number])
        outage = Outage(self._client, _LONGEST_MS / 1000)
        for _, records, at_end in self._fetched(outage):
            wanted = Messages([record for record in records if record.offset < end])
            self._positions[number] = end if len(wanted) < len(records) else self._positions[number]
            if len(wanted):
                yield number, wanted
            if at_end or self._positions[number] >= end:
                return
        at = self._positions[number]
        message = f"ended at offset {at} of {end}, after {outage.longest:g} s without answer"
        raise self._client.error(f"{self._topic}-{number}", message, outage.trouble)

    def follow(self) -> Iterator[tuple[int, Messages]]:
        self._assign(self._positions)
        for number, records, _ in self._fetched(Outage(self._client, math.inf)):
            if len(records):
                yield number, records

    def _assign(self, partitions: Iterable[int]) -> None:
        kind = self._client.kafka.TopicPartition
        self._consumer.assign([kind(self._topic, n, self._positions[n]) for n in partitions])

    def _fetched(self, outage: Outage) -> Iterator[tuple[int, Messages, bool]]:
        """Yield (partition, records, whether the records reach the partition's end). Return when an outage
        has lasted too long.
        """
        kinds = self._client.kafka.KafkaError
        ended = kinds._PARTITION_EOF
        # Although no offset is committed, librdkafka asks for the group's coordinator. If the user has no
        # rights for the group, the answer is GROUP_AUTHORIZATION_FAILED. This error is ignored, because the
        # user may still read records.
        ignored = (ended, kinds.GROUP_AUTHORIZATION_FAILED)
        while not outage.is_too_long():
            messages = self._consumer.consume(_AT_ONCE, _STEP)
            outage.end() if messages else outage.look()
            for number, run in groupby(messages, key=lambda message: message.partition()):
                held = [*run]
                whole = [each for each in held if each.error() is None]
                errors = [each.error() for each in held if each.error() is not None]
                if whole:
                    self._positions[number] = whole[-1].offset() + 1
                yield number, Messages([_record(each) for each in whole]), ended in [e.code() for e in errors]
                for error in errors:
                    if error.code() not in ignored:
                        raise self._client.error(f"{self._topic}-{number}", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of: object) -> None:
        self._consumer.close()


def _record(message: Any) -> Record:
    _, timestamp = message.timestamp()
    return Record(message.offset(), timestamp, message.key(), message.value(), message.headers() or [])
