"""The thread that appends what the accumulator holds ready, and knows which failures pass.

On disk: nothing of its own.

Threads: one per producer; it alone touches a batch between drain and completion. Encoding, compression and
the append happen here, with no lock of the producer's held.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from itertools import accumulate
from typing import TYPE_CHECKING

from segstore.client.producer.accumulator import Accumulator
from segstore.client.producer.batch import ProducerBatch, columns_of
from segstore.client.producer.config import ProducerConfig
from segstore.client.producer.metrics import ProducerMetrics
from segstore.client.producer.queue import PartitionQueue
from segstore.client.producer.routing import Routing
from segstore.client.quotas import MOST_WAIT_MS, PRODUCER_BYTE_RATE, quotas
from segstore.errors import (
    InvalidArgumentError,
    KafkaTimeoutError,
    StorageError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
)
from segstore.storage.producing import Appended, append_batches, append_record

if TYPE_CHECKING:
    from segstore.storage.store import Store

log = logging.getLogger("segstore")

_PASSING = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EAGAIN, errno.EINTR, errno.ENOMEM),
        *(errno.EMFILE, errno.ENFILE, errno.EBUSY, errno.ETIMEDOUT),
    }
)


def passes(error: BaseException) -> bool:
    """Whether trying again may help (Kafka: RetriableException): nothing was written, and room may come."""
    return isinstance(error, StorageError) and error.errno in _PASSING


class Sender(threading.Thread):
    """Runs until `refusal` is set and nothing waits any more, or `aborted` is."""

    def __init__(
        self,
        store: Store,
        config: ProducerConfig,
        accumulator: Accumulator,
        routing: Routing,
        metrics: ProducerMetrics,
    ) -> None:
        super().__init__(name=config.client_id, daemon=True)
        self._store, self._config, self._accumulator = store, config, accumulator
        self._routing, self._metrics = routing, metrics
        self._throttle = quotas(store).throttle(PRODUCER_BYTE_RATE, config.client_id)
        self._backoff = config.retry_backoff_ms / 1000
        self._delivery_timeout = config.delivery_timeout_ms / 1000
        self.aborted: BaseException | None = None

    def run(self) -> None:
        accumulator = self._accumulator
        while True:
            ready, look = accumulator.drain(time.monotonic())
            for queue, batches in ready:
                try:
                    self._send(
                        queue, batches if self._throttle.bound is None else self._admitted(queue, batches)
                    )
                except Exception as error:  # ours: no record may stay without an outcome
                    log.exception("the producer's sender failed")
                    self._fail([batch for batch in batches if not batch.done], error)
            if not ready:
                if accumulator.end():
                    return
                accumulator.sleep(look)

    # --- one partition's batches --------------------------------------------------------

    def _send(self, queue: PartitionQueue, batches: list[ProducerBatch]) -> None:
        batches = self._without_expired(batches)
        if not batches:
            return
        if self._config.acks == 0:
            self._fire(batches)
            return
        self._metrics.in_flight = 1
        error = self._try(batches)
        self._metrics.in_flight = 0
        if error is None:
            return
        if passes(error):
            self._again(queue, batches, error)
        elif len(batches) > 1:
            # One of them is at fault: each gets what it deserves, in order.
            for i, batch in enumerate(batches):
                self._send(queue, [batch])
                if not batch.done:
                    self._accumulator.put_back(queue, batches[i:], queue.retry_at)
                    return
        elif batches[0].n > 1 and isinstance(error, InvalidArgumentError):
            self._send_each(queue, batches[0])
        else:
            self._fail(batches, error)

    def _admitted(self, queue: PartitionQueue, batches: list[ProducerBatch]) -> list[ProducerBatch]:
        """What the client's byte rate lets go now; the others are put back, and hold their memory."""
        batches = self._without_expired(batches)
        if self.aborted is not None:
            self._fail(batches, self.aborted)
            return []
        wait, left = self._throttle.wait_ms(), self._throttle.most_at_once
        sizes = accumulate(batch.size for batch in batches)
        count = 0 if wait else sum(size <= left for size in sizes) or 1
        if count < len(batches):
            look = time.monotonic() + min(wait, MOST_WAIT_MS) / 1000
            expiry = batches[count].created + self._delivery_timeout
            self._accumulator.put_back(queue, batches[count:], min(look, expiry))
        return batches[:count]

    def _without_expired(self, batches: list[ProducerBatch]) -> list[ProducerBatch]:
        least = time.monotonic() - self._delivery_timeout
        expired = [batch for batch in batches if batch.created <= least]
        for batch in expired:
            error = KafkaTimeoutError(
                f"{batch.n} records for {batch.topic_partition} were not written within "
                f"delivery_timeout_ms={self._config.delivery_timeout_ms}"
            )
            self._fail([batch], error)
        return [batch for batch in batches if not batch.done] if expired else batches

    def _try(self, batches: list[ProducerBatch]) -> Exception | None:
        if batches[0].results is not None:
            return InvalidArgumentError("it was split before")
        began = time.monotonic()
        try:
            appended = self._append(batches)
        except Exception as error:
            return error
        first = appended.first
        for batch in batches:
            batch.base_offset, batch.append_time = first, appended.append_time
            first += batch.n
        self._accumulator.complete(batches)
        self._metrics.sent(batches, appended.size, began, time.monotonic())
        return None

    def _append(self, batches: list[ProducerBatch]) -> Appended:
        partition = self._store.partition(*batches[0].topic_partition)
        compression = self._config.compression_type
        if len(batches) == 1 and batches[0].n == 1:
            appended = append_record(partition, *batches[0].record(0), compression)
        else:
            cuts = list(accumulate(batch.n for batch in batches[:-1]))
            appended = append_batches(partition, columns_of(batches), cuts, compression)
        if self._throttle.bound is not None:
            self._metrics.throttled(self._throttle.charge(appended.size))
        return appended

    def _fire(self, batches: list[ProducerBatch]) -> None:
        """acks=0: nobody learns what becomes of them, and nothing is tried again."""
        began = time.monotonic()
        try:
            appended = self._append(batches)
        except Exception as error:
            log.debug("acks=0: %d batches were not written: %s", len(batches), error)
            for batch in batches:
                self._metrics.failed(batch, batch.n)
        else:
            self._metrics.sent(batches, appended.size, began, time.monotonic())
        self._accumulator.complete(batches)

    # --- what failed ----------------------------------------------------------------------

    def _again(self, queue: PartitionQueue, batches: list[ProducerBatch], error: Exception) -> None:
        """Try the same batches, in the same order, before all that came later; or give those up that were
        tried often enough.
        """
        spent = [batch for batch in batches if batch.attempts >= self._config.retries]
        if self.aborted is not None:
            self._fail(batches, self.aborted)
            return
        self._fail(spent, error)
        left = [batch for batch in batches if not batch.done]
        if not left:
            return
        for batch in left:
            batch.attempts += 1
        self._metrics.retried(left)
        expiry = left[0].created + self._delivery_timeout
        self._accumulator.put_back(queue, left, min(time.monotonic() + self._backoff, expiry))

    def _send_each(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Record by record, each with an outcome of its own; goes on where a failure that passes ended it."""
        if batch.results is None:
            batch.results = []
            self._metrics.split()
        partition = self._store.partition(*batch.topic_partition)
        began, stored = time.monotonic(), 0
        while len(batch.results) < batch.n:
            at = len(batch.results)
            try:
                appended = append_record(partition, *batch.record(at), self._config.compression_type)
            except Exception as error:
                if passes(error):
                    self._again(queue, [batch], error)
                    return
                batch.results.append(error)
            else:
                batch.results.append(appended.first)
                batch.append_time = appended.append_time
                stored += appended.size
        failed = sum(isinstance(result, BaseException) for result in batch.results)
        if self._throttle.bound is not None:
            self._metrics.throttled(self._throttle.charge(stored))
        self._accumulator.complete([batch])
        self._metrics.failed(batch, failed)
        self._metrics.sent([batch], stored, began, time.monotonic())

    def _fail(self, batches: list[ProducerBatch], error: BaseException) -> None:
        if not batches:
            return
        if isinstance(error, StoreClosedError | UnknownTopicOrPartitionError):
            self._routing.forget(batches[0].topic_partition.topic)
        for batch in batches:
            batch.error = error
        self._accumulator.complete(batches)
        for batch in batches:
            self._metrics.failed(batch, batch.n)
