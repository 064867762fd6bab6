"""Reads records of a share group: from a store with segstore's ShareConsumer, from a cluster with
librdkafka's.

Nothing is on disk. Threads: one. librdkafka has its own threads.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import segstore
from segstore.cli.places.client import ClusterClients
from segstore.errors import SegstoreError

if TYPE_CHECKING:
    from typing_extensions import Self

    from segstore.client.consumer.records import ConsumerRecord
    from segstore.coordinator.structs import TopicPartition

_STEP = 0.2
"""The longest time in seconds of one call of librdkafka. Python can handle signals only between two calls."""
_FOREVER_MS = 10**9
ACKS = {"accept": 1, "release": 2, "reject": 3}
"""Kafka's number of the acknowledge type that each value of --ack means."""


class QueueTerms(NamedTuple):
    """The options of a share group's consumer. `ack` is a key of ACKS. If `is_strict`, a poll acquires only
    as many records as it returns.
    """

    topic: str
    group: str
    ack: str
    is_strict: bool


class QueueRecord(NamedTuple):
    """A record that was delivered to a share group, with the number of its deliveries."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    delivery_count: int | None


class StoreQueue:
    """The share consumer of an open store: implements `Queue`."""

    def __init__(self, store: segstore.Store, terms: QueueTerms) -> None:
        self._ack = segstore.AcknowledgeType(ACKS[terms.ack])
        self._consumer = segstore.ShareConsumer(
            store,
            terms.topic,
            group_id=terms.group,
            share_acknowledgement_mode="explicit",
            share_acquire_mode="record_limit" if terms.is_strict else "batch_optimized",
        )
        self._records: list[ConsumerRecord] = []

    def poll(self, timeout_ms: int | None, most: int | None) -> list[QueueRecord]:
        self._records = self._consumer.poll_flat(_FOREVER_MS if timeout_ms is None else timeout_ms, most)
        return [_of_store(record) for record in self._records]

    def acknowledge(self) -> None:
        for record in self._records:
            self._consumer.acknowledge(record, self._ack)
        for tp, error in self._consumer.commit_sync().items():
            if error is not None:
                raise _refused(tp, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of: object) -> None:
        self._consumer.close()


def _of_store(record: ConsumerRecord) -> QueueRecord:
    part = record.partition, record.offset, record.timestamp
    return QueueRecord(*part, record.key, record.value, record.headers, record.delivery_count)


def _refused(tp: TopicPartition, error: object) -> SegstoreError:
    return SegstoreError(f"{tp.topic}-{tp.partition}: what was printed is not acknowledged: {error}")


class ClusterQueue:
    """librdkafka's share consumer of a cluster: implements `Queue`."""

    def __init__(self, client: ClusterClients, terms: QueueTerms) -> None:
        self._client, self._ack, self._topic = client, ACKS[terms.ack], terms.topic
        self._consumer = client.made(
            client.kafka.ShareConsumer, group_id=terms.group, share_acknowledgement_mode="explicit"
        )
        self._consumer.subscribe([terms.topic])
        self._messages: list[Any] = []

    def poll(self, timeout_ms: int | None, most: int | None) -> list[QueueRecord]:
        self._messages = self._some(timeout_ms)
        for message in self._messages[most:] if most is not None else ():
            self._consumer.acknowledge(message, ACKS["release"])
        self._messages = self._messages[:most]
        return [_of_cluster(message) for message in self._messages]

    def _some(self, timeout_ms: int | None) -> list[Any]:
        end = time.monotonic() + (_FOREVER_MS if timeout_ms is None else timeout_ms) / 1000
        while True:
            left = max(end - time.monotonic(), 0)
            try:
                found = list(self._consumer.poll(min(left, _STEP)))
            except self._client.kafka.KafkaException as error:
                raise self._client.error(self._topic, error) from None
            for message in found:
                if message.error() is not None:
                    raise self._client.error(self._topic, message.error())
            if found or not left:
                return found

    def acknowledge(self) -> None:
        for message in self._messages:
            self._consumer.acknowledge(message, self._ack)
        for tp, error in self._consumer.commit_sync().items():
            if error is not None:
                raise _refused(tp, self._client.reason(error))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of: object) -> None:
        self._consumer.close()


def _of_cluster(message: Any) -> QueueRecord:
    _, timestamp = message.timestamp()
    part = message.partition(), message.offset(), timestamp
    return QueueRecord(
        *part, message.key(), message.value(), message.headers() or [], message.delivery_count()
    )
