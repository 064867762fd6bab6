"""`ProducerBatch`: records of one partition that become one record batch; and `PartitionQueue`, the batches
of a partition that wait.

Threads: a batch is filled by the thread that seals it, and is the sender's alone from then on; `done` is
set once, with the producer's lock held, after the outcome is in place, so that a thread that sees it may
read the rest without the lock.
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

_times_of, _keys_of, _values_of = map(attrgetter, ("times", "keys", "values"))  # each is a call of C
_metadata: Callable[[tuple[Any, ...]], RecordMetadata] = partial(tuple.__new__, RecordMetadata)  # a call of C


class Stamp(NamedTuple):
    """What a batch's header says of its producer."""

    producer_id: int
    epoch: int
    sequence: int


Sizes = bytes | None
_time_at, _size_at = Struct("=q").unpack_from, Struct("=i").unpack_from
Split = tuple[Sequence["bytes | None"], list["bytes | None"], list[Headers]]
_NONE: list[Headers] = [()]


class ProducerBatch(Owner):
    """`values`: bytes, None, or a Headed each; `keys`: bytes or None each, None where no record has a key or
    headers; `times`: int64 ms, as bytes; `created` and `attempts` as in Kafka's ProducerBatch; `block`: the
    bytes of the pool that it holds. `stamp`: what its header says of its producer, from the first attempt on;
    `doubt`: an attempt failed in a way that does not tell whether the log has the batch.
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
        # The outcome of each record, an offset or an error, where the batch had to be split.
        self.results: list[int | BaseException] | None = None
        # The sizes of values, and those of keys and of headers: int32, as bytes. Those of values alone are
        # known at once.
        self.sizes = sizes
        self.other_sizes: tuple[Sizes, Sizes] | None = None
        self._split: Split | None = None

    # --- the outcome ----------------------------------------------------------------------

    def error_of(self, at: int) -> BaseException | None:
        """Return the error of record `at`."""
        if self.results is None:
            return self.error
        if at >= len(self.results):
            return self.error
        result = self.results[at]
        return result if isinstance(result, BaseException) else None

    def unwritten(self) -> tuple[int, BaseException | None]:
        """Return how many records are known not to be in the log, and an error of one of them. Records that
        the application aborted are not counted.
        """
        written = sum(isinstance(result, int) for result in self.results or ())
        errors = [each for each in self.results or () if isinstance(each, BaseException)]
        if self.results is None and self.done and self.error is None:
            written = self.n
        error = errors[-1] if errors else self.error
        return (0, None) if isinstance(error, TransactionAbortedError) else (self.n - written, error)

    def metadata(self, at: int) -> RecordMetadata:
        """Return where record `at` was written."""
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
        """Keep only sizes and times: futures may live long after their records."""
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
        """Return columns of values, keys and headers."""
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
    """A record that C has appended by itself (`_native/post.c`), without a batch of Python's: what its future
    refers to from then on. It has no headers, and sizes are -1 for None.
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
        """Return None: it is in the log."""

    def metadata(self, at: int) -> RecordMetadata:
        """Return where the record was written."""
        topic, partition = self.topic_partition
        return _metadata(
            (
                *(topic, partition, self.topic_partition, self.offset, self.timestamp, None),
                *(self.key_size, self.value_size, -1),
            )
        )


def _lengths(items: Sequence[bytes | None]) -> bytes:
    # The garbage collector does not look into bytes.
    return array("i", [-1 if item is None else len(item) for item in items]).tobytes()


def within(batches: list[ProducerBatch], most: int) -> Iterator[list[ProducerBatch]]:
    """Return the batches in runs of up to `most` bytes, or of one batch that is larger."""
    first = size = 0
    for at, batch in enumerate(batches):
        if at > first and size + batch.size > most:
            yield batches[first:at]
            first, size = at, 0
        size += batch.size
    if batches:
        yield batches[first:]


def columns_of(batches: Sequence[ProducerBatch]) -> Columns:
    """Return the records of some batches, one after the other."""
    stamps = valid_stamps(b"".join(map(_times_of, batches)))
    if not any(map(_keys_of, batches)):
        return Columns(_joined(map(_values_of, batches)), timestamps=stamps)
    values, keys, headers = map(_joined, zip(*[batch.split() for batch in batches], strict=True))
    return Columns(values, keys, stamps, headers if any(headers) else None)


def _joined(lists: Iterable[Sequence[Any]]) -> tuple[Any, ...]:
    return tuple(chain.from_iterable(lists))


# --- queue -------------------------------------------------------------------------------------

# `PartitionQueue`: one partition's records that wait, those of full batches and of the open one, and a deque
# of sealed batches.
#
# Threads: C appends without the lock, and begins batches, each in one step (`_native/queue.c`); everything
# else is done with the producer's lock held.


class PartitionQueue(Records):
    """`left`: bytes that the open batch can still take, -1 where none is open; `room`: bytes that it had room
    for; `block`: bytes of the pool that it holds; `created`: when it was opened, monotonic seconds;
    `produced`: bytes that were ever sealed. `rich`: whether a record ever had more than a value; it is set
    before the append and never taken back: no record lies in a batch that does not know.
    """

    __slots__ = ("done", "error", "lock", "retry_at", "topic_partition")

    def __init__(self, lock: ProducerLock, topic_partition: TopicPartition) -> None:
        self.lock, self.topic_partition = lock, topic_partition
        self.records: list[FutureRecordMetadata] = []
        self.batches: deque[ProducerBatch] = deque()
        self.left = -1
        self.retry_at = 0.0  # nothing is sent before, monotonic seconds
        # Set where the open records will never be sealed, in a forked child.
        self.done = False
        self.error: BaseException | None = None

    def error_of(self, at: Any) -> BaseException | None:
        """Return the error of every open record."""
        return self.error

    def seal(
        self, whole: bool, incomplete: dict[ProducerBatch, None], sealed: dict[PartitionQueue, None]
    ) -> bool:
        """Make batches of the records in full batches, with `whole` of all, at the deque's end, and place
        them in the futures. Return whether C has filled more of them meanwhile, which only a `whole` one
        prevents: it has told nobody of those.

        After an interrupt either nothing was sealed, or all of it: C does it in one step.
        """
        made: list[ProducerBatch] = []
        for part in self.parts(whole):
            made += (ProducerBatch(self.lock, self.topic_partition, *part),)
        return bool(made) and self.settle(made, incomplete, sealed)
