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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from segstore.client.producer.buffer_pool import Owner
from segstore.client.producer.future import FutureRecordMetadata
from segstore.client.producer.lock import ProducerLock
from segstore.client.producer.record import Headed, Headers, RecordMetadata, headers_size
from segstore.coordinator.structs import TopicPartition
from segstore.errors import TransactionAbortedError
from segstore.records import Columns
from segstore.records.columns import clock_stamps
from segstore.threads import Latch

if TYPE_CHECKING:
    from numpy.typing import NDArray


_metadata: Callable[[tuple[Any, ...]], RecordMetadata] = partial(tuple.__new__, RecordMetadata)  # a call of C


class Stamp(NamedTuple):
    """What a batch's header says of its producer."""

    producer_id: int
    epoch: int
    sequence: int


Sizes = Sequence[int] | None
Split = tuple[list["bytes | None"], list["bytes | None"], list[Headers]]
_NONE: list[Headers] = [()]


class ProducerBatch(Owner):
    """`values`: bytes, None, or a Headed each; `keys`: bytes or None each, None where no record has a key or
    headers; `times`: the clock's seconds, or all in ms (`stamped`: some may be given); `created` and
    `attempts` as in Kafka's ProducerBatch; `block`: the bytes of the pool that it holds. `stamp`: what
    its header says of its producer, from the first attempt on; `doubt`: an attempt failed in a way that
    does not tell whether the log has the batch.
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
            "results",
            "size",
            "sizes",
            "stamp",
            "stamped",
            "times",
            "topic_partition",
            "unplaced",
            "values",
            "_split",
        ),
    )

    def __init__(
        self,
        lock: ProducerLock,
        topic_partition: TopicPartition,
        values: list[Any],
        times: list[float | int],
        keys: list[bytes | None] | None = None,
        stamped: bool = False,
    ) -> None:
        self.lock, self.topic_partition = lock, topic_partition
        self.values, self.n = values, len(values)
        self.keys, self.stamped = keys, stamped
        self.times: array[Any] = array("q", map(milliseconds, times)) if stamped else array("d", times)
        self.size = self.block = self.attempts = 0
        self.created = 0.0
        # Futures that may not refer to this batch yet, because an interrupt came into `place`.
        self.unplaced: list[FutureRecordMetadata] | None = None
        self.latch: Latch | None = None
        self.callbacks: list[Any] | None = None
        self.done = self.doubt = False
        self.stamp: Stamp | None = None
        self.error: BaseException | None = None
        self.base_offset = self.append_time = -1
        # The outcome of each record, an offset or an error, where the batch had to be split.
        self.results: list[int | BaseException] | None = None
        # The sizes of values, keys and headers, once the records are written.
        self.sizes: tuple[Sizes, Sizes, Sizes] = (None, None, None)
        self._split: Split | None = None

    def place(self) -> None:
        """Tell the futures their places in this batch. May be repeated until it was done."""
        for at, record in enumerate(self.unplaced or ()):
            # The less the garbage collector finds in a future the better.
            record._at, record._key, record._time = at, None, 0
            record._holder = self
        self.unplaced = None

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
            stamp = self.times[at]
            timestamp = stamp if self.stamped else int(stamp * 1000)
        values, keys, headers = self.sizes
        return _metadata(
            (
                *(topic, partition, self.topic_partition, offset, timestamp, None),
                -1 if keys is None else keys[at],
                -1 if values is None else values[at],
                -1 if headers is None else headers[at],
            )
        )

    def record(self, at: int) -> tuple[bytes | None, bytes | None, Headers, int]:
        """Return value, key, headers and timestamp (ms) of record `at`."""
        value, stamp = self.values[at], self.times[at]
        if not self.stamped:
            stamp = int(stamp * 1000)
        key, headers = None if self.keys is None else self.keys[at], ()
        if type(value) is tuple:
            value, headers = value
        return value, key, headers, stamp

    def forget_records(self) -> None:
        """Keep only sizes and times: futures may live long after their records."""
        if self.keys is not None:
            values, keys, headers = self.split()
            of_headers = [headers_size(h) if h else -1 for h in headers] if any(headers) else None
            self.sizes = _lengths(values), _lengths(keys), of_headers
        else:
            self.sizes = _lengths(self.values), None, None
        self.values, self.keys, self._split = [], None, None

    def split(self) -> Split:
        """Return columns of values, keys and headers."""
        if self._split is None:
            values, keys, headers = self.values, self.keys or [None] * self.n, _NONE * self.n
            if tuple in set(map(type, values)):
                headed: list[Headed] = [each if type(each) is tuple else (each, ()) for each in values]
                values, headers = [value for value, _ in headed], [pairs for _, pairs in headed]
            self._split = values, keys, headers
        return self._split


def _lengths(items: Sequence[bytes | None]) -> Sequence[int]:
    # The garbage collector does not look into arrays.
    try:
        return array("i", map(len, items))  # type: ignore[arg-type]
    except TypeError:
        return array("i", (-1 if item is None else len(item) for item in items))


def milliseconds(stamp: float | int) -> int:
    """Return ms: a float is the clock's seconds, an int is the ms that were given."""
    return stamp if type(stamp) is int else int(stamp * 1000)


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
    stamps: Any
    if any(batch.stamped for batch in batches):
        stamps = np.concatenate([_stamps(batch) for batch in batches])
    else:
        stamps = clock_stamps(b"".join(batch.times for batch in batches))
    if all(batch.keys is None for batch in batches):
        return Columns(_joined(batch.values for batch in batches), timestamps=stamps)
    values, keys, headers = map(_joined, zip(*[batch.split() for batch in batches], strict=True))
    return Columns(values, keys, stamps, headers if any(headers) else None)


def _joined(lists: Iterable[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))


def _stamps(batch: ProducerBatch) -> NDArray[np.int64]:
    """Return the timestamps in ms."""
    if batch.stamped:
        return np.frombuffer(batch.times, np.int64)
    return (np.frombuffer(batch.times) * 1000).astype(np.int64)


# --- queue -------------------------------------------------------------------------------------

# `PartitionQueue`: one partition's records that wait, the open ones and a deque of sealed batches.
#
# Threads: `append` by any thread without the lock (`list.append` is atomic); everything else with the
# producer's lock held, except for `left`, see `Producer.send`.

NO_BLOCK = -1


class PartitionQueue(Owner):
    """`left`: bytes that the open batch can still take, NO_BLOCK where none is open.

    A record that was appended while its batch was being sealed lies in the list without a block, until the
    next batch is opened or the thread that finds it seals it.
    """

    __slots__ = (
        *("append", "batches", "callbacks", "created", "done", "error", "latch", "left", "lock"),
        *("produced", "records", "retry_at", "rich", "room", "stamped", "topic_partition"),
    )

    def __init__(self, lock: ProducerLock, topic_partition: TopicPartition) -> None:
        self.lock, self.topic_partition = lock, topic_partition
        self.records: list[FutureRecordMetadata] = []
        self.append = self.records.append
        self.batches: deque[ProducerBatch] = deque()
        self.left = NO_BLOCK
        super().__init__()  # `block`: bytes of the pool that the open batch holds
        self.room = 0  # bytes of records that it had room for
        self.created = 0.0  # when it was opened, monotonic seconds
        # Whether a record ever had more than a value, or a time of its own. Set before the append and
        # never taken back: no record lies in a batch that does not know.
        self.rich = self.stamped = False
        self.produced = 0  # bytes that were ever sealed
        self.retry_at = 0.0  # nothing is sent before, monotonic seconds
        self.latch: Latch | None = None
        self.callbacks: list[Any] | None = None
        # Set where the open records will never be sealed, in a forked child.
        self.done = False
        self.error: BaseException | None = None

    def error_of(self, at: Any) -> BaseException | None:
        """Return the error of every open record."""
        return self.error

    def seal(
        self, now: float, incomplete: dict[ProducerBatch, None], sealed: dict[PartitionQueue, None]
    ) -> ProducerBatch | None:
        """Make a batch of the open records, at the deque's end, and place it in the futures; None where
        there are no records.

        After an interrupt either nothing was sealed, or all of it.
        """
        size, self.left = self.room - max(self.left, 0), NO_BLOCK
        # Only now: a thread that appends after this sees that the batch is closed, and calls `late`.
        records = self.records
        taken = records[:]
        n = len(taken)
        if not n:
            return None
        values, times = [r._at for r in taken], [r._time for r in taken]
        keys = [r._key for r in taken] if self.rich else None
        batch = ProducerBatch(self.lock, self.topic_partition, values, times, keys, self.stamped)
        batch.created, batch.size = self.created if self.block else now, size
        # No function is called until the deque has the batch: no interrupt comes in between.
        batch.block, self.block, self.room = self.block, 0, 0
        batch.latch, self.latch = self.latch, None
        batch.callbacks, self.callbacks = self.callbacks, None
        self.produced += size
        del records[:n]
        incomplete[batch] = sealed[self] = None
        batch.unplaced = taken
        self.batches += (batch,)
        try:
            batch.place()
        except BaseException:
            batch.place()  # and where that is interrupted too, when the outcome is known
            raise
        return batch
