"""`Sender`: the thread that sends due batches, as fast as the client's byte rate allows, and commits or
aborts the producer's transactions.

On disk: nothing of its own. Threads: one per producer; any thread may call `abort`. From the time when the
sender drains a batch until the batch has an outcome, no other thread uses the batch.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING

from segstore._native._producer import Post
from segstore.client.producer.accumulator import Accumulator, Ready
from segstore.client.producer.batch import PartitionQueue, ProducerBatch
from segstore.client.producer.config import ProducerConfig
from segstore.client.producer.delivery import Appender, Delivery
from segstore.client.producer.idempotence import ProducerStamps, sequences_of
from segstore.client.producer.metrics import MOST_NOTED, ProducerMetrics
from segstore.client.producer.partitioner import Routing
from segstore.client.producer.transactions import Transactions
from segstore.coordinator.quotas import MOST_WAIT_MS, PRODUCER_BYTE_RATE, quotas
from segstore.errors import SegstoreError
from segstore.logger import Logger
from segstore.storage.log.acks import Acks
from segstore.threads import Background

if TYPE_CHECKING:
    from segstore.storage.store.store import Store

log = Logger("segstore")

REQUEST_TIMEOUT_MS = 30_000
"""The longest time, in ms, that one attempt waits for a partition's other replicas (Kafka:
request.timeout.ms).
"""


class Sender(Background):
    """The sender of one producer. Its thread runs until the accumulator refuses new records, and no record
    waits.
    """

    def __init__(
        self,
        store: Store,
        config: ProducerConfig,
        accumulator: Accumulator,
        routing: Routing,
        metrics: ProducerMetrics,
        transactions: Transactions | None = None,
    ) -> None:
        super().__init__(self._send_all, config.client_id)
        self._accumulator, self._transactions = accumulator, transactions
        self._throttle = quotas(store).throttle(PRODUCER_BYTE_RATE, config.client_id)
        self._backoff, self._timeout = config.retry_backoff_ms / 1000, config.delivery_timeout_ms / 1000
        stamps = ProducerStamps(store, sequences_of(store, config, transactions))
        compression = config.compression_type
        acks = Acks(config.acks, min(REQUEST_TIMEOUT_MS, config.delivery_timeout_ms))
        appender = Appender(store, stamps, transactions, self._throttle, metrics, compression, acks)
        incomplete = accumulator.incomplete
        self._delivery = Delivery(config, incomplete, routing, metrics, stamps, appender, transactions)
        self._post = self._made_post(metrics)
        self._sending: list[ProducerBatch] = []
        # This reference keeps the `ProducerEnding` alive while the sender runs.
        self.ending: object = None

    def _made_post(self, metrics: ProducerMetrics) -> Post:
        post = Post()
        self._accumulator.lend_sender(post)
        post.reported, post.throttle, post.timeout = self._delivery.reported, self._throttle, self._timeout
        post.noted, post.most_noted = metrics.noted if metrics.enabled else None, MOST_NOTED
        return post

    def _send_all(self) -> None:
        accumulator = self._accumulator
        accumulator.lock.sender = threading.get_ident()
        while True:
            if self._transactions is None:
                self._post_singles()
            else:
                # `_post_singles` is not called, because its C code appends no records of transactions.
                # `work` commits or aborts a transaction whose records all have an outcome.
                accumulator.work()
            ready, look = accumulator.drain(time.monotonic())
            if len(ready) > 1 and self._transactions is not None:
                self._enlist(ready, self._transactions)
            for queue, batches in ready:
                self._sending = batches
                try:
                    self._send_or_keep(queue, batches)
                except BaseException as error:
                    # Any exception is caught, because every record needs an outcome.
                    log.exception("the producer's sender failed")
                    self._delivery.fail([batch for batch in batches if not batch.done], error)
            self._sending = []
            if not ready:
                if accumulator.refusal is not None and accumulator.end():
                    break
                accumulator.gate.sleep(look)
        if self._transactions is not None:
            self._transactions.close()

    def _post_singles(self) -> None:
        """Run the C code that appends single records, and sleeps between appends. The C code returns when
        there is other work, at the latest after a number of records.
        """
        try:
            self._post.run()
        except BaseException:
            # Any exception is caught, for example MemoryError, because `_send_all` can send the remaining
            # records.
            log.exception("the producer's sender failed")

    def abort(self, error: BaseException) -> None:
        """Fail all unwritten records with `error`, without another attempt."""
        self._delivery.aborted = error
        if self._transactions is not None:
            # `failed` is called before the records fail, so that a commit that waits for them fails, too.
            self._transactions.failed(error)
        self._accumulator.abort(error)

    def is_sending(self) -> bool:
        """Return whether an append is still running. Takes no lock."""
        return any(not batch.done for batch in self._sending)

    def last_error(self, batches: Iterable[ProducerBatch]) -> BaseException | None:
        """Find the first batch in whose partition an append has failed after the batch was created. Return
        the partition's last error, or None if there is no such batch.
        """
        return self._delivery.last_error(batches)

    def _enlist(self, ready: Ready, transactions: Transactions) -> None:
        """Add the partitions of all queues in `ready` to the transaction, in one write."""
        if transactions.refusal() is None:
            # An error is ignored here: each append tries to add its partition again, and reports the error.
            with (
                contextlib.suppress(SegstoreError),
                transactions.appending([queue.topic_partition for queue, _ in ready]),
            ):
                pass

    def _send_or_keep(self, queue: PartitionQueue, batches: list[ProducerBatch]) -> None:
        if batches[0].created + self._timeout <= time.monotonic():
            batches = self._delivery.without_expired(batches)
        if self._throttle.bound is not None:
            batches = self._admitted(queue, batches)
        left = self._delivery.send(batches)
        if not left:
            queue.lane = self._delivery.lane(queue.lane, queue.topic_partition)
        else:
            expiry = self._delivery.expiry(left[0])
            self._accumulator.put_back(queue, left, min(time.monotonic() + self._backoff, expiry))

    def _admitted(self, queue: PartitionQueue, batches: list[ProducerBatch]) -> list[ProducerBatch]:
        """Return the batches that the client's byte rate allows now, and put all other batches back into the
        queue.
        """
        delivery = self._delivery
        if delivery.aborted is not None:
            delivery.fail(batches, delivery.aborted)
            return []
        if self._transactions is not None and self._transactions.refusal() is not None:
            # These batches will fail, so they don't count for the byte rate.
            return batches
        wait, left = self._throttle.wait_ms(), self._throttle.most_at_once
        sizes = accumulate(batch.size for batch in batches)
        count = 0 if wait else sum(size <= left for size in sizes) or 1
        if count < len(batches):
            look = time.monotonic() + min(wait, MOST_WAIT_MS) / 1000
            self._accumulator.put_back(queue, batches[count:], min(look, delivery.expiry(batches[count])))
        return batches[:count]
