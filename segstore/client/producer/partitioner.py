"""Partitioning: `partition_for_key` maps a key to the same partition as Kafka's producers do, by the hash
murmur2. `Routing` finds the partition of any record.

Threads: any. A `Route` is replaced when its topic changes. If several threads update a `Route` at the same
time, an update may be lost; the next check of the topic repeats it.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from segstore._native import ffi, lib
from segstore.arrays import np
from segstore.client.producer.accumulator import Accumulator
from segstore.client.producer.batch import PartitionQueue
from segstore.client.producer.record import RECORD_OVERHEAD
from segstore.config import arguments
from segstore.coordinator.structs import TopicPartition
from segstore.errors import InvalidArgumentError, InvalidTypeError, UnknownTopicOrPartitionError
from segstore.mutex import calls_out
from segstore.records import HEADER_SIZE
from segstore.storage.meta.topic_info import INTERNAL, check_not_internal
from segstore.storage.meta.topics import find_topic
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from segstore.records.column import Column

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF

NO_PARTITION = -1
"""The result of `partitions_for_keys` for a null key: such a record may go to any partition."""


def murmur2(data: bytes) -> int:
    """Return the 32-bit hash of `data`, unsigned (Kafka: org.apache.kafka.common.utils.Utils.murmur2)."""
    size = len(data)
    h = _SEED ^ size
    for k in struct.unpack_from(f"<{size // 4}I", data):
        k = k * _M & _MASK
        h = (h * _M & _MASK) ^ ((k ^ k >> 24) * _M & _MASK)
    rest = data[size & ~3 :]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition, from 0 to `partitions` - 1, that Kafka's producer chooses
    (BuiltInPartitioner).
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def partitions_for_keys(keys: Sequence[bytes | None], partitions: int) -> NDArray[np.int32]:
    """Return an array with the partition of each key, and NO_PARTITION for a null key. Equal keys are hashed
    only once.
    """
    by_key: dict[bytes | None, int] = {
        key: partition_for_key(key, partitions) for key in set(keys) if key is not None
    }
    by_key[None] = NO_PARTITION
    return np.fromiter(map(by_key.__getitem__, keys), np.int32, len(keys))


def key_hashes(keys: Column) -> NDArray[np.int32]:
    """Return an array with the hash of each key: `murmur2` without the sign bit, computed in C. The value of
    a null key is NO_PARTITION. A key's partition is the hash modulo the number of partitions. Raises
    InvalidArgumentError for a column whose offsets point outside its data.
    """
    hashes = np.empty(keys.n, np.int32)
    if keys.n and lib.seg_murmur2(keys.c, keys.n, ffi.from_buffer("int32_t[]", hashes)) < 0:
        raise InvalidArgumentError("keys: a column's offsets point outside its data, or fall")
    return hashes


# --- routing -----------------------------------------------------------------------------------

# `Routing` chooses the partition of a record. It is the partition that the application gave. If there is
# none, the application's partitioner chooses one. Without a partitioner, the record's key chooses the
# partition, by the same hash as in Kafka's producers. Records without a key are sent to one partition, the
# sticky one, until it has received `batch_size` bytes. Then another sticky partition is chosen at random
# (KIP-794, but without adaptive partitioning, because all partitions share one disk).

_MOST_KEYS = 1 << 16
# After this many seconds a topic is checked for new partitions again.
_AGE = 1.0


class PartitionerCluster:
    """The `cluster` argument of a kafka-python partitioner."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def topics(self) -> set[str]:
        """Return the names of all topics."""
        return set(self._store.topics())

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the numbers of a topic's partitions, or None if there is no such topic."""
        info = self._store.topics().get(topic)
        return None if info is None else set(info.partition_ids)

    def available_partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the numbers of all partitions of a topic, because each partition is always available. Return
        None if there is no such topic.
        """
        return self.partitions_for_topic(topic)


class Route:
    """One topic's partitions at the time of the last check of the topic."""

    __slots__ = ("by_key", "ids", "looked", "queues", "since", "sticky")

    def __init__(
        self, ids: tuple[int, ...], queues: dict[int, PartitionQueue], sticky: PartitionQueue
    ) -> None:
        self.ids, self.queues, self.looked = ids, queues, 0.0
        self.look()
        self.by_key: dict[bytes, PartitionQueue] = {}
        self.sticky, self.since = sticky, sticky.produced

    def look(self) -> None:
        """Record that the partitions are current: the C code may begin batches until the next check of the
        topic is due.
        """
        self.looked = time.monotonic()
        for queue in self.queues.values():
            queue.alone, queue.cut_until = len(self.ids) == 1, self.looked + _AGE


class Routing:
    """The routes of one producer, for `Producer.send`. `sticky` has, for each topic, the queue of the next
    record without a key. `by_key` has, for each topic, the queues of the keys that were used before.
    """

    def __init__(
        self,
        store: Store,
        accumulator: Accumulator,
        partitioner: Any,
        batch_size: int,
        rng: random.Random | None = None,
    ) -> None:
        self._store, self._accumulator = store, accumulator
        self._batch_size, self._rng = batch_size, rng or random.Random()
        self._choose = _chooser(partitioner, PartitionerCluster(store))
        self._routes: dict[str, Route] = {}
        self.sticky: dict[str, PartitionQueue] = {}
        self.by_key: dict[str, dict[bytes, PartitionQueue]] = {}

    def partitions(self, topic: str) -> tuple[int, ...]:
        """Return the numbers of a topic's partitions. Raises UnknownTopicOrPartitionError."""
        if isinstance(topic, str) and topic in INTERNAL:
            return find_topic(self._store.topics(), topic).partition_ids
        return self._look(topic).ids

    def pick(
        self,
        topic: str,
        partition: int | None,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: Any,
    ) -> PartitionQueue:
        """Return the queue of the record's partition. Raises UnknownTopicOrPartitionError, and the errors of
        the application's partitioner.
        """
        route = self._route(topic)
        if partition is None and self._choose is not None:
            partition = self._choose(topic, key, key_bytes, value, value_bytes, route.ids)
        if partition is not None:
            return self._given(topic, route, partition)
        if key_bytes is not None:
            return self._by_key(route, key_bytes)
        return self.stick(topic, len(value_bytes or b"") + RECORD_OVERHEAD)

    def stick(self, topic: str, size: int) -> PartitionQueue:
        """Return the queue for a record that has `size` bytes and no key. Raises
        UnknownTopicOrPartitionError.
        """
        route = self._routes.get(topic)
        if route is None or time.monotonic() - route.looked > _AGE:
            route = self._look(topic)
        queue = route.sticky
        if len(route.ids) == 1:
            # If the batch is full, `append` seals it and opens a new one in the same queue.
            return queue
        sent = queue.produced - route.since + queue.room - (queue.left if queue.left > 0 else 0)
        if sent + size + HEADER_SIZE > self._batch_size and sent:
            self._accumulator.close_batch(queue)
            queue = route.sticky = route.queues[self._rng.choice(route.ids)]
            route.since = queue.produced
            self.sticky[topic] = queue
        return queue

    def _route(self, topic: str) -> Route:
        route = self._routes.get(topic) if isinstance(topic, str) else None
        if route is None or time.monotonic() - route.looked > _AGE:
            route = self._look(topic)
        return route

    def forget(self, topic: str) -> None:
        """Drop the route of a topic that was deleted, or deleted and created again."""
        self.sticky.pop(topic, None)
        self.by_key.pop(topic, None)
        self._routes.pop(topic, None)

    def clear(self) -> None:
        """Empty the look-up tables of the C code of `send`, so that every record goes through `Intake`."""
        self.sticky.clear()
        self.by_key.clear()

    def _look(self, topic: str) -> Route:
        if not isinstance(topic, str):
            raise InvalidTypeError(f"topic must be a str, not {type(topic).__name__}")
        check_not_internal(topic, "only consumer groups and transactions write it")
        info = self._store.topics().get(topic)
        if info is None:
            self.forget(topic)
            # This call raises an error that lists the topics.
            self._store.partition(topic, 0)
            raise UnknownTopicOrPartitionError(f"there is no topic {topic!r}")
        route = self._routes.get(topic)
        if route is not None and route.ids == info.partition_ids:
            route.look()
            return route
        queues = {p: self._accumulator.queue(TopicPartition(topic, p)) for p in info.partition_ids}
        route = Route(info.partition_ids, queues, queues[self._rng.choice(info.partition_ids)])
        self._routes[topic] = route
        self.sticky[topic], self.by_key[topic] = route.sticky, route.by_key
        return route

    def _given(self, topic: str, route: Route, partition: Any) -> PartitionQueue:
        if type(partition) is not int:
            partition = arguments.whole("partition", partition, None)
        queue = route.queues.get(partition)
        if queue is None:
            queue = self._look(topic).queues.get(partition)
        if queue is None:
            raise UnknownTopicOrPartitionError(
                f"there is no partition {partition} of topic {topic!r}: it has {list(route.ids)}"
            )
        return queue

    def _by_key(self, route: Route, key: bytes) -> PartitionQueue:
        queue = route.by_key.get(key)
        if queue is None:
            if len(route.by_key) >= _MOST_KEYS:
                route.by_key.clear()
            queue = route.queues[route.ids[partition_for_key(key, len(route.ids))]]
            route.by_key[key] = queue
        return queue


Choose = Callable[[str, Any, "bytes | None", Any, Any, tuple[int, ...]], Any]


def _chooser(partitioner: Any, cluster: PartitionerCluster) -> Choose | None:
    """Return a function that calls the application's partitioner, which is an object with a method
    `partition`, or a callable (key, all, available). Return None if there is no partitioner.
    """
    if partitioner is None:
        return None
    if hasattr(partitioner, "partition"):
        return calls_out(
            lambda topic, key, key_bytes, value, value_bytes, ids: partitioner.partition(
                topic, key, key_bytes, value, value_bytes, cluster
            )
        )
    return calls_out(
        lambda topic, key, key_bytes, value, value_bytes, ids: partitioner(key_bytes, list(ids), list(ids))
    )
