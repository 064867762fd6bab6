"""Records of one partition that are written together: one record batch. Nothing on disk.

Threads: filled by whoever seals it, then the sender's alone; `done` is set once, with the producer's lock
held, after the outcome is in place, so that whoever sees it may read the rest without.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from segstore.client.producer.latch import Latch
from segstore.client.producer.record import Headers, RecordMetadata, Rich, headers_size
from segstore.client.structs import TopicPartition
from segstore.records import Columns

if TYPE_CHECKING:
    from segstore.client.producer.futures import Callback, FutureRecordMetadata

Waiting = tuple["FutureRecordMetadata", "Callback | None", "Callback | None"]


class ProducerBatch:
    """`values`: bytes, None, or a Rich each; `times`: float seconds, or int ms as given; `created` and
    `attempts` as in Kafka's ProducerBatch; `block`: bytes of the pool that it holds.
    """

    __slots__ = (
        *("append_time", "attempts", "base_offset", "block", "callbacks", "created", "done", "error"),
        *("latch", "lock", "n", "results", "rich", "size", "sizes", "times", "topic_partition", "values"),
    )

    def __init__(
        self,
        lock: threading.Lock,
        topic_partition: TopicPartition,
        values: list[Any],
        times: list[float | int],
    ) -> None:
        self.lock, self.topic_partition = lock, topic_partition
        self.values, self.times, self.n = values, times, len(values)
        self.rich = False
        self.size = self.block = self.attempts = 0
        self.created = 0.0
        self.latch: Latch | None = None
        self.callbacks: list[Waiting] | None = None
        self.done = False
        self.error: BaseException | None = None
        self.base_offset = self.append_time = -1
        # Outcomes one by one, where the batch had to be split: an offset or an error.
        self.results: list[int | BaseException] | None = None
        self.sizes: Sequence[Any] = ()

    # --- the outcome ----------------------------------------------------------------------

    def error_of(self, at: int) -> BaseException | None:
        """What failed for record `at`."""
        if self.results is None:
            return self.error
        if at >= len(self.results):
            return self.error
        result = self.results[at]
        return result if isinstance(result, BaseException) else None

    def metadata(self, at: int, stamp: float | int) -> RecordMetadata:
        """Where record `at` went."""
        topic, partition = self.topic_partition
        offset = self.base_offset + at if self.base_offset >= 0 else -1
        if self.results is not None:
            result = self.results[at]
            assert isinstance(result, int)
            offset = result
        timestamp = self.append_time if self.append_time >= 0 else milliseconds(stamp)
        key, value, headers = _three(self.sizes[at])
        return RecordMetadata(
            topic, partition, self.topic_partition, offset, timestamp, None, key, value, headers
        )

    def record(self, at: int) -> tuple[bytes | None, bytes | None, Headers, int]:
        """Value, key, headers and timestamp (ms) of record `at`."""
        value, stamp = self.values[at], milliseconds(self.times[at])
        return (*value, stamp) if isinstance(value, Rich) else (value, None, (), stamp)

    def forget_records(self) -> None:
        """Keep sizes only: futures may live long after their records."""
        try:
            self.sizes = list(map(len, self.values))
        except TypeError:
            self.sizes = [_sizes_of(value) for value in self.values]
        if self.rich:
            self.sizes = [_sizes_of(value) for value in self.values]
        self.values, self.times = [], []


def _sizes_of(value: Any) -> tuple[int, int, int]:
    if not isinstance(value, Rich):
        return -1, -1 if value is None else len(value), -1
    key, headers = value.key, headers_size(value.headers) if value.headers else -1
    return -1 if key is None else len(key), -1 if value.value is None else len(value.value), headers


def _three(sizes: Any) -> tuple[int, int, int]:
    """Sizes of key, value and headers; one number is that of a value alone."""
    key, value, headers = sizes if isinstance(sizes, tuple) else (-1, sizes, -1)
    return key, value, headers


def milliseconds(stamp: float | int) -> int:
    """A float is the clock's seconds, an int ms as they were given."""
    return stamp if type(stamp) is int else int(stamp * 1000)


def columns_of(batches: Sequence[ProducerBatch]) -> Columns:
    """The records of some batches, one after the other."""
    values: list[Any] = []
    times: list[float | int] = []
    for batch in batches:
        values += batch.values
        times += batch.times
    if not any(batch.rich for batch in batches):
        return Columns(values, timestamps=(np.frombuffer(array("d", times)) * 1000).astype(np.int64))
    rich = [value if isinstance(value, Rich) else Rich(value, None, ()) for value in values]
    stamps = np.array([milliseconds(stamp) for stamp in times], np.int64)
    headers = [record.headers for record in rich]
    return Columns(
        [record.value for record in rich],
        keys=[record.key for record in rich],
        timestamps=stamps,
        headers=headers if any(headers) else None,
    )
