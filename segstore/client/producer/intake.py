"""`Intake`: does the steps of `send` for a record: call the interceptors and serializers, check the size,
choose the partition, and append the record to a batch.

Threads: any; each step runs in the caller's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from segstore.client.producer import record
from segstore.client.producer.accumulator import Accumulator
from segstore.client.producer.config import ProducerConfig
from segstore.client.producer.future import FutureRecordMetadata
from segstore.client.producer.partitioner import Routing
from segstore.client.producer.record import (
    MAX_RECORD_OVERHEAD,
    RECORD_OVERHEAD,
    ProducerInterceptors,
    ProducerRecord,
    check_headers,
    size_of,
)
from segstore.client.producer.transactions import Transactions
from segstore.config import arguments
from segstore.errors import RecordTooLargeError, copy_of
from segstore.records import HEADER_SIZE


class Intake:
    """The steps of `send` of one producer. `clock` returns ms since the epoch. `plain` is True if the
    application has set no interceptor, serializer or partitioner.
    """

    def __init__(
        self,
        config: ProducerConfig,
        routing: Routing,
        accumulator: Accumulator,
        transactions: Transactions | None,
        clock: Callable[[], int],
    ) -> None:
        self._config, self._routing, self._accumulator = config, routing, accumulator
        self._transactions, self._clock = transactions, clock
        self._interceptors = ProducerInterceptors(config.interceptors)
        self._key_bytes = record.serializer("key", config.key_serializer)
        self._value_bytes = record.serializer("value", config.value_serializer)
        own = (config.key_serializer, config.value_serializer, config.partitioner)
        self.plain = not self._interceptors and all(part is None for part in own)

    def check_open(self) -> None:
        """Raise ClientClosedError or ForkedError if the producer refuses records."""
        refusal = self._accumulator.refusal
        if refusal is not None:
            raise copy_of(refusal)

    def take(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> FutureRecordMetadata:
        """Check, serialize and route a record, and append it to a batch. Called if the C code of `send` can't
        do that. Raises the errors of `Producer.send`.
        """
        self.check_open()
        if self._transactions is not None:
            self._transactions.check_send()
        record = ProducerRecord(topic, value, key, headers, partition, timestamp_ms)
        if not self._interceptors:
            return self._append(record)
        record = self._interceptors.on_send(record)
        try:
            future = self._append(record)
        except Exception as error:
            self._interceptors.failed(error)
            raise
        future.add_callback(self._interceptors.acknowledged).add_errback(self._interceptors.failed)
        return future

    def take_next(self, topic: str, value: bytes, time_ms: int) -> FutureRecordMetadata:
        """Append a record that has no key, and is not larger than a usual batch. Called if the C code of
        `send` found no room for the record in the open batch.
        """
        future, size = FutureRecordMetadata(), len(value) + RECORD_OVERHEAD
        future._value, future._time = value, time_ms
        queue = self._routing.stick(topic, size)
        if not self._accumulator.put(queue, future, size):
            self._accumulator.append(queue, future, size)
        return future

    def _append(self, record: ProducerRecord) -> FutureRecordMetadata:
        topic, stamp = record.topic, record.timestamp_ms
        headers = check_headers(record.headers)
        key = self._key_bytes(topic, record.headers, record.key)
        value = self._value_bytes(topic, record.headers, record.value)
        size = size_of(value, key, headers)
        self._check_size(size)
        future = FutureRecordMetadata()
        future._value, future._key = (value, headers) if headers else value, key
        future._time = self._clock() if stamp is None else arguments.whole("timestamp_ms", stamp, -1)
        queue = self._routing.pick(topic, record.partition, record.key, key, record.value, value)
        self._accumulator.append(queue, future, size + RECORD_OVERHEAD)
        return future

    def _check_size(self, size: int) -> None:
        size += HEADER_SIZE + MAX_RECORD_OVERHEAD
        for name in ("max_request_size", "buffer_memory"):
            allowed = getattr(self._config, name)
            if size > allowed:
                raise RecordTooLargeError(f"the record takes {size:,} bytes: allowed are {name}={allowed:,}")

    def close(self) -> None:
        """Close the application's serializers and interceptors."""
        for serializer in (self._config.key_serializer, self._config.value_serializer):
            record.close(serializer)
        self._interceptors.close()
