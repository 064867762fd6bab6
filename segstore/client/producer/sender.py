"""The thread that appends what the accumulator holds ready, and knows which failures pass.

On disk: nothing of its own.

Threads: one per producer; it alone touches a batch between drain and completion. Encoding, compression and
the append happen here, with no lock of the producer's held.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from itertools import accumulate
from typing import TYPE_CHECKING

from segstore.client.producer.accumulator import Accumulator, Ready
from segstore.client.producer.batch import ProducerBatch, columns_of
from segstore.client.producer.config import ProducerConfig
from segstore.client.producer.metrics import ProducerMetrics
from segstore.client.producer.queue import PartitionQueue
from segstore.client.producer.record import MAX_RECORD_OVERHEAD
from segstore.client.producer.routing import Routing
from segstore.client.producer.sequences import Sequences
from segstore.client.producer.transactional import Transactions
from segstore.client.quotas import MOST_WAIT_MS, PRODUCER_BYTE_RATE, quotas
from segstore.client.retriable import passes
from segstore.client.structs import TopicPartition
from segstore.errors import (
    DuplicateSequenceError,
    InvalidArgumentError,
    InvalidProducerEpochError,
    InvalidTypeError,
    KafkaTimeoutError,
    OutOfOrderSequenceError,
    SegstoreError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
)
from segstore.records import HEADER_SIZE, Template
from segstore.records.encoded import PLAIN
from segstore.storage import markers
from segstore.storage.producing import Appended, append_batches, append_record

if TYPE_CHECKING:
    from segstore.storage.log import PartitionLog
    from segstore.storage.store import Store

log = logging.getLogger("segstore")

# The log knows the producer otherwise than its stamps say: the batch is not in it, and can't come next.
_MISFITS = (OutOfOrderSequenceError, InvalidProducerEpochError, DuplicateSequenceError)
# What is told before anything is written.
_NOTHING_WRITTEN = (InvalidArgumentError, InvalidTypeError, UnknownTopicOrPartitionError, *_MISFITS)


class Sender(threading.Thread):
    """Runs until `refusal` is set and nothing waits any more, or `aborted` is."""

    def __init__(
        self,
        store: Store,
        config: ProducerConfig,
        accumulator: Accumulator,
        routing: Routing,
        metrics: ProducerMetrics,
        sequences: Sequences | None = None,
        transactions: Transactions | None = None,
    ) -> None:
        """`sequences` None: without idempotence."""
        super().__init__(name=config.client_id, daemon=True)
        self._store, self._config, self._accumulator = store, config, accumulator
        self._routing, self._metrics = routing, metrics
        self._sequences, self._transactions = sequences, transactions
        self._throttle = quotas(store).throttle(PRODUCER_BYTE_RATE, config.client_id)
        self._backoff = config.retry_backoff_ms / 1000
        self._delivery_timeout = config.delivery_timeout_ms / 1000
        self.aborted: BaseException | None = None
        # Held by nobody, the store would make a log anew for each append.
        self._logs: dict[TopicPartition, PartitionLog] = {}

    def run(self) -> None:
        accumulator = self._accumulator
        while True:
            ready, look = accumulator.drain(time.monotonic())
            if len(ready) > 1 and self._transactions is not None:
                self._enlist(ready, self._transactions)
            for queue, batches in ready:
                try:
                    self._send_or_keep(queue, batches)
                except BaseException as error:  # ours: no record may stay without an outcome
                    log.exception("the producer's sender failed")
                    self._fail([batch for batch in batches if not batch.done], error)
            if not ready:
                if accumulator.end():
                    break
                accumulator.sleep(look)
        if self._transactions is not None:
            self._transactions.close()

    def _enlist(self, ready: Ready, transactions: Transactions) -> None:
        """Make all these partitions part of the transaction in one write."""
        if transactions.refusal() is None:
            # What fails is asked again, and told, by each partition's append.
            with (
                contextlib.suppress(SegstoreError),
                transactions.appending([queue.topic_partition for queue, _ in ready]),
            ):
                pass

    def _send_or_keep(self, queue: PartitionQueue, batches: list[ProducerBatch]) -> None:
        if self._throttle.bound is not None:
            batches = self._admitted(queue, batches)
        left = self._send(batches)
        if left:
            expiry = left[0].created + self._delivery_timeout
            self._accumulator.put_back(queue, left, min(time.monotonic() + self._backoff, expiry))

    # --- one partition's batches --------------------------------------------------------

    def _send(self, batches: list[ProducerBatch], renewed: bool = False) -> list[ProducerBatch]:
        """See to an outcome for each: those that are to be tried again, which may be all."""
        batches = self._without_expired(batches)
        refusal = None if self._transactions is None else self._transactions.refusal()
        if refusal is not None:
            self._fail(batches, refusal)
        if refusal is not None or not batches:
            return []
        if self._config.acks == 0:
            self._fire(batches)
            return []
        if len(batches) > 1 and self._sequences is not None and any(batch.doubt for batch in batches):
            return self._one_by_one(batches)  # only alone is each known again
        self._metrics.in_flight = 1
        error = self._try(batches)
        self._metrics.in_flight = 0
        return [] if error is None else self._after(error, batches, renewed)

    def _after(self, error: Exception, batches: list[ProducerBatch], renewed: bool) -> list[ProducerBatch]:
        """What becomes of batches that could not be appended."""
        self._doubt(error, batches)
        if passes(error):
            return self._again(batches, error)
        if len(batches) > 1:
            return self._one_by_one(batches)
        batch = batches[0]
        if batch.n > 1 and isinstance(error, InvalidArgumentError) and not (batch.doubt and batch.stamp):
            return self._send_each(batch)
        if isinstance(error, _MISFITS) and not renewed and self._renew(batch, error):
            return self._send([batch], renewed=True)
        self._fail(batches, error)
        return []

    def _one_by_one(self, batches: list[ProducerBatch]) -> list[ProducerBatch]:
        """Each gets what it deserves, in order; where one is to be tried again, so are those behind it."""
        for i, batch in enumerate(batches):
            if self._send([batch]):
                return batches[i:]
        return []

    def _doubt(self, error: Exception, batches: list[ProducerBatch]) -> None:
        """Remember of stamped batches whether they may be in the log all the same."""
        if self._sequences is None or any(batch.doubt for batch in batches):
            return
        if isinstance(error, _NOTHING_WRITTEN):
            self._sequences.take_back(batches)
        else:
            for batch in batches:
                batch.doubt = True

    def _renew(self, batch: ProducerBatch, error: Exception) -> bool:
        """Whether the batch, which is not in the log, is to be sent with another stamp (KIP-360)."""
        if self._sequences is None or (batch.doubt and not self._one_record_batch(batch)):
            return False
        partition = self._store.partition(*batch.topic_partition)
        known = -1 if isinstance(error, OutOfOrderSequenceError) else markers.max_producer_id(partition)
        return self._sequences.renew(batch, known)

    def _one_record_batch(self, batch: ProducerBatch) -> bool:
        """Whether the log surely has it as one record batch: of several it can't tell whether they are all
        there.
        """
        settings = self._store.topics()[batch.topic_partition.topic].settings
        most = min(settings.max_message_bytes, settings.segment_bytes)
        return batch.size + MAX_RECORD_OVERHEAD * batch.n + HEADER_SIZE < most // 6 * 5

    def _admitted(self, queue: PartitionQueue, batches: list[ProducerBatch]) -> list[ProducerBatch]:
        """What the client's byte rate lets go now; the others are put back, and hold their memory."""
        batches = self._without_expired(batches)
        if self.aborted is not None:
            self._fail(batches, self.aborted)
            return []
        if self._transactions is not None and self._transactions.refusal() is not None:
            return batches  # which will not be written
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
        except DuplicateSequenceError as error:
            if not batches[0].doubt:
                return error
            appended = Appended(-1, -1, 0)  # it is there, but nobody knows where
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
        where = batches[0].topic_partition
        partition = self._logs[where] = self._store.partition(*where)
        sequences, transactions = self._sequences, self._transactions
        template = PLAIN if sequences is None else sequences.template(batches)
        if transactions is None:
            appended = self._write(partition, batches, template)
        else:
            with transactions.appending((batches[0].topic_partition,)):
                appended = self._write(partition, batches, template)
        if appended.duplicate and not batches[0].doubt:
            raise DuplicateSequenceError(
                f"{batches[0].topic_partition} has batches of another producer {template.producer_id}"
            )
        if self._throttle.bound is not None:
            self._metrics.throttled(self._throttle.charge(appended.size))
        return appended

    def _write(self, partition: PartitionLog, batches: list[ProducerBatch], template: Template) -> Appended:
        compression = self._config.compression_type
        if len(batches) == 1 and batches[0].n == 1:
            return append_record(partition, *batches[0].record(0), compression, template)
        cuts = list(accumulate(batch.n for batch in batches[:-1]))
        return append_batches(partition, columns_of(batches), cuts, compression, template)

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

    def _again(self, batches: list[ProducerBatch], error: Exception) -> list[ProducerBatch]:
        """The same batches, in the same order, to be tried before all that came later; but not those that
        were tried often enough.
        """
        spent = [batch for batch in batches if batch.attempts >= self._config.retries]
        if self.aborted is not None:
            self._fail(batches, self.aborted)
            return []
        self._fail(spent, error)
        left = [batch for batch in batches if not batch.done]
        for batch in left:
            batch.attempts += 1
        if left:
            self._metrics.retried(left)
        return left

    def _send_each(self, batch: ProducerBatch) -> list[ProducerBatch]:
        """Record by record, each with an outcome of its own; goes on where a failure that passes ended it."""
        if batch.results is None:
            batch.results = []
            self._metrics.split()
        began, stored = time.monotonic(), 0
        while len(batch.results) < batch.n:
            try:
                appended = self._write_record(batch, len(batch.results))
            except Exception as error:
                if passes(error):
                    return self._again([batch], error)
                batch.results.append(self._told(error))
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
        return []

    def _write_record(self, batch: ProducerBatch, at: int) -> Appended:
        """Its sequence stays the same until it is in the log."""
        where, compression = batch.topic_partition, self._config.compression_type
        partition, sequences = self._store.partition(*where), self._sequences
        if sequences is None:
            return append_record(partition, *batch.record(at), compression)
        with self._in_transaction(where):
            template = sequences.next_record(where)
            appended = append_record(partition, *batch.record(at), compression, template)
        sequences.written(where)
        return appended

    def _in_transaction(self, where: TopicPartition) -> contextlib.AbstractContextManager[None]:
        if self._transactions is None:
            return contextlib.nullcontext()
        return self._transactions.appending((where,))

    def _told(self, error: BaseException) -> BaseException:
        """What a record's future says of what failed for good."""
        return error if self._transactions is None else self._transactions.failed(error)

    def _fail(self, batches: list[ProducerBatch], error: BaseException) -> None:
        if not batches:
            return
        if isinstance(error, StoreClosedError | UnknownTopicOrPartitionError):
            self._routing.forget(batches[0].topic_partition.topic)
            self._logs.pop(batches[0].topic_partition, None)
        error = self._told(error)
        for batch in batches:
            batch.error = error
            if self._sequences is not None and batch.stamp is not None:
                self._sequences.lost(batch)
        self._accumulator.complete(batches)
        for batch in batches:
            self._metrics.failed(batch, batch.n)
