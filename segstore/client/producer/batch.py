"""`ProducerBatch`: the records of one partition that are written as one record batch. `PartitionQueue`: the
batches of one partition that wait to be written.

Threads: the thread that seals a batch creates the ProducerBatch; after that only the sender changes it.
`done` becomes True after the outcome was stored, with the producer's lock held. A thread that reads `done` as
True may therefore read the outcome without the lock.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from struct import Struct
from typing import Any, NamedTuple

from segstore._native import _producer
from segstore._native._producer import Records
from segstore.client.producer.buffer_pool import Owner
from segstore.client.producer.future import FutureRecordMetadata, untracked
from segstore.client.producer.lock import ProducerLock
from segstore.client.producer.record import Headed, Headers, RecordMetadata, headers_size
from segstore.coordinator.structs import TopicPartition
from segstore.errors import TransactionAbortedError
from segstore.records import Columns
from segstore.records.columns import valid_stamps
from segstore.threads import Latch

# These are functions in C.
_times_of, _keys_of, _values_of = map(attrgetter, ("times", "keys", "values"))
# A function in C makes a RecordMetadata from a tuple.
_metadata: Callable[[tuple[Any, ...]], RecordMetadata] = partial(tuple.__new__, RecordMetadata)


class Stamp(NamedTuple):
    """The producer id, epoch and base sequence in a batch's header."""

    producer_id: int
    epoch: int
    sequence: int


Sizes = bytes | None
_time_at, _size_at = Struct("=q").unpack_from, Struct("=i").unpack_from
Split = tuple[Sequence["bytes | None"], list["bytes | None"], list[Headers]]
_NONE: list[Headers] = [()]


class ProducerBatch(Owner):
    """A sealed batch. `values`: for each record bytes, None, or a Headed; `keys`: for each record bytes or
    None; `keys` is None if no record has a key or headers; `times`: the records' timestamps, int64 ms, as
    bytes. `created` and `attempts` are those of Kafka's ProducerBatch. `block`: the bytes of the buffer pool
    that the batch occupies. `stamp`: the batch's producer id, epoch and sequence, which the first attempt
    sets. `doubt`: whether a failed attempt may have written the batch.
    """

    __slots__ = (
        *("append_time", "attempts", "base_offset", "callbacks", "created", "done"),
        *(
            "doubt",
            "error",
            "keys",
            "latch",
            "lock",
            "n",
            "other_sizes",
            "results",
            "size",
            "sizes",
            "stamp",
            "times",
            "topic_partition",
            "values",
            "_split",
        ),
    )

    def __init__(
        self,
        lock: ProducerLock,
        topic_partition: TopicPartition,
        values: Sequence[Any],
        keys: list[bytes | None] | None,
        times: bytes,
        sizes: bytes | None,
        size: int,
        created: float,
    ) -> None:
        self.lock, self.topic_partition = lock, topic_partition
        self.values: Sequence[Any] = values
        self.n = len(values)
        self.keys, self.times, self.size, self.created = keys, times, size, created
        self.block = self.attempts = 0
        self.latch: Latch | None = None
        self.callbacks: list[Any] | None = None
        self.done = self.doubt = False
        self.stamp: Stamp | None = None
        self.error: BaseException | None = None
        self.base_offset = self.append_time = -1
        # If the batch was split, this list has the outcome of each record: an offset or an error.
        self.results: list[int | BaseException] | None = None
        # `sizes` has the sizes of the values. `other_sizes` has the sizes of the keys and of the headers. The
        # sizes are int32, as bytes. `forget_records` sets both; in a batch that has only values, `sizes` is
        # set here.
        self.sizes = sizes
        self.other_sizes: tuple[Sizes, Sizes] | None = None
        self._split: Split | None = None

    # --- the outcome ----------------------------------------------------------------------

    def error_of(self, at: int) -> BaseException | None:
        """Return the error of record `at`, or None if the record was written."""
        if self.results is None:
            return self.error
        if at >= len(self.results):
            return self.error
        result = self.results[at]
        return result if isinstance(result, BaseException) else None

    def unwritten(self) -> tuple[int, BaseException | None]:
        """Return (number of unwritten records, error of an unwritten record or None). Records that the
        application aborted are not counted.
        """
        written = sum(isinstance(result, int) for result in self.results or ())
        errors = [each for each in self.results or () if isinstance(each, BaseException)]
        if self.results is None and self.done and self.error is None:
            written = self.n
        error = errors[-1] if errors else self.error
        return (0, None) if isinstance(error, TransactionAbortedError) else (self.n - written, error)

    def metadata(self, at: int) -> RecordMetadata:
        """Return the metadata of record `at`."""
        topic, partition = self.topic_partition
        offset = self.base_offset + at if self.base_offset >= 0 else -1
        if self.results is not None:
            result = self.results[at]
            assert isinstance(result, int)
            offset = result
        timestamp = self.append_time
        if timestamp < 0:
            (timestamp,) = _time_at(self.times, 8 * at)
        values, (keys, headers) = self.sizes, self.other_sizes or (None, None)
        return _metadata(
            (
                *(topic, partition, self.topic_partition, offset, timestamp, None),
                -1 if keys is None else _size_at(keys, 4 * at)[0],
                -1 if values is None else _size_at(values, 4 * at)[0],
                -1 if headers is None else _size_at(headers, 4 * at)[0],
            )
        )

    def record(self, at: int) -> tuple[bytes | None, bytes | None, Headers, int]:
        """Return value, key, headers and timestamp (ms) of record `at`."""
        value, (stamp,) = self.values[at], _time_at(self.times, 8 * at)
        key, headers = None if self.keys is None else self.keys[at], ()
        if type(value) is tuple:
            value, headers = value
        return value, key, headers, stamp

    def forget_records(self) -> None:
        """Drop keys, values and headers, to free their memory. Sizes and times are kept, because futures
        return them.
        """
        if self.keys is not None:
            values, keys, headers = self.split()
            of_headers = [headers_size(h) if h else -1 for h in headers] if any(headers) else None
            self.sizes = _lengths(values)
            self.other_sizes = (
                _lengths(keys),
                array("i", of_headers).tobytes() if of_headers else None,
            )
        self.values, self.keys, self._split = (), None, None

    def split(self) -> Split:
        """Return (column of values, column of keys, column of headers)."""
        if self._split is None:
            keys, headers = self.keys or [None] * self.n, _NONE * self.n
            values: Sequence[Any] = self.values
            if tuple in set(map(type, values)):
                headed: list[Headed] = [each if type(each) is tuple else (each, ()) for each in values]
                values, headers = [value for value, _ in headed], [pairs for _, pairs in headed]
            self._split = values, keys, headers
        return self._split


@untracked(_producer.Written)
class NativeRecord:
    """A record that has no headers, and that the C code has appended alone (`_native/post.c`). The record's
    future refers to this object in place of a batch. The size of a null key or value is -1.
    """

    __slots__ = ("key_size", "lock", "offset", "timestamp", "topic_partition", "value_size")
    lock: ProducerLock
    topic_partition: TopicPartition
    offset: int
    timestamp: int
    key_size: int
    value_size: int
    done, latch, callbacks = True, None, None

    def error_of(self, at: int) -> None:
        """Return None: the record is in the log."""

    def metadata(self, at: int) -> RecordMetadata:
        """Return the record's metadata."""
        topic, partition = self.topic_partition
        return _metadata(
            (
                *(topic, partition, self.topic_partition, self.offset, self.timestamp, None),
                *(self.key_size, self.value_size, -1),
            )
        )


def _lengths(items: Sequence[bytes | None]) -> bytes:
    # The sizes are stored as bytes, because the garbage collector does not scan bytes.
    return array("i", [-1 if item is None else len(item) for item in items]).tobytes()


def within(batches: list[ProducerBatch], most: int) -> Iterator[list[ProducerBatch]]:
    """Yield the batches in groups of up to `most` bytes. A batch that is larger than `most` is alone in its
    group.
    """
    first = size = 0
    for at, batch in enumerate(batches):
        if at > first and size + batch.size > most:
            yield batches[first:at]
            first, size = at, 0
        size += batch.size
    if batches:
        yield batches[first:]


def columns_of(batches: Sequence[ProducerBatch]) -> Columns:
    """Return the records of all batches as columns, in the order of the batches."""
    stamps = valid_stamps(b"".join(map(_times_of, batches)))
    if not any(map(_keys_of, batches)):
        return Columns(_joined(map(_values_of, batches)), timestamps=stamps)
    values, keys, headers = map(_joined, zip(*[batch.split() for batch in batches], strict=True))
    return Columns(values, keys, stamps, headers if any(headers) else None)


def _joined(lists: Iterable[Sequence[Any]]) -> tuple[Any, ...]:
    return tuple(chain.from_iterable(lists))


# --- queue -------------------------------------------------------------------------------------

# `PartitionQueue`: one partition's waiting records: those in full batches, those in the open batch, and a
# deque of sealed batches. Threads: the C code (`_native/queue.c`) appends records and begins batches without
# the lock: while it does one of these, it does not release the GIL. All other code holds the producer's lock.


class PartitionQueue(Records):
    """A partition's waiting records. `left`: the bytes that can still be added to the open batch, or -1 if
    there is no open batch. `room`: the most bytes of the open batch. `block`: the bytes of the buffer pool
    that the open batch occupies. `created`: the time when the open batch was opened, in monotonic seconds.
    `produced`: the bytes of all batches that were ever sealed. `rich`: whether any record ever had a key or
    headers. `rich` is set before such a record is appended, and never cleared, so that it is True whenever a
    batch with such a record is sealed.
    """

    __slots__ = ("done", "error", "lock", "retry_at", "topic_partition")

    def __init__(self, lock: ProducerLock, topic_partition: TopicPartition) -> None:
        self.lock, self.topic_partition = lock, topic_partition
        self.records: list[FutureRecordMetadata] = []
        self.batches: deque[ProducerBatch] = deque()
        self.left = -1
        # Before this time, in monotonic seconds, no batch of the queue is sent.
        self.retry_at = 0.0
        # `done` and `error` are set only in a forked child, because there the open records will never be
        # sealed.
        self.done = False
        self.error: BaseException | None = None

    def error_of(self, at: Any) -> BaseException | None:
        """Return the error of all records that are not in a sealed batch; None if these records have no
        error.
        """
        return self.error

    def seal(
        self, whole: bool, incomplete: dict[ProducerBatch, None], sealed: dict[PartitionQueue, None]
    ) -> bool:
        """Make a ProducerBatch from each full batch and, if `whole`, from the open batch. Add the new batches
        to the end of `batches` and to `incomplete`, add this queue to `sealed`, and make the futures refer to
        the new batches. Return whether the queue still has a full batch, because the C code has filled
        one during the call; False if `whole`.

        After the batches are made, `settle`, in C, does the rest in one step, so that an interrupt leaves no
        batch half sealed.
        """
        made: list[ProducerBatch] = []
        for part in self.parts(whole):
            made += (ProducerBatch(self.lock, self.topic_partition, *part),)
        return bool(made) and self.settle(made, incomplete, sealed)
