"""`Delivery`: gives each batch an outcome. A batch is appended, retried, split, or failed.

On disk: `Appender` appends to the store's logs. Threads: the sender's. From the time when the sender drains a
batch until the batch has an outcome, no other thread uses the batch.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING

from segstore._native._producer import Lane
from segstore.client.producer.batch import ProducerBatch, columns_of, within
from segstore.client.producer.config import ProducerConfig
from segstore.client.producer.idempotence import ProducerStamps
from segstore.client.producer.incomplete_batches import Incomplete
from segstore.client.producer.metrics import ProducerMetrics
from segstore.client.producer.partitioner import Routing
from segstore.client.producer.transactions import Transactions
from segstore.coordinator.retriable import passes
from segstore.coordinator.structs import TopicPartition
from segstore.coordinator.throttle import QuotaThrottle
from segstore.errors import (
    DuplicateSequenceError,
    InvalidArgumentError,
    KafkaTimeoutError,
    SegstoreError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
    copy_of,
)
from segstore.logger import Logger
from segstore.records import HEADER_SIZE, Template
from segstore.storage.log.acks import ALL, Acks
from segstore.storage.log.append import Appended, append_batches, append_record
from segstore.storage.log.append_pieces import NOTHING, PIECE_BYTES, Pieces, append_pieces
from segstore.storage.reported_failures import ReportedFailures

if TYPE_CHECKING:
    from segstore.storage.store.partition_log import PartitionLog
    from segstore.storage.store.store import Store


# These are functions in C.
_size_of, _records_of = attrgetter("size"), attrgetter("n")

# --- appender ----------------------------------------------------------------------------------

# `Appender`: appends batches, or single records, to the store's logs. The sender's thread encodes, compresses
# and appends, without the producer's lock.


class Appender:
    """Appends the batches of one producer, with the producer's `compression` and `acks`, and counts the
    written bytes in `throttle` for the client's byte rate.
    """

    def __init__(
        self,
        store: Store,
        stamps: ProducerStamps,
        transactions: Transactions | None,
        throttle: QuotaThrottle,
        metrics: ProducerMetrics,
        compression: str | None,
        acks: Acks = ALL,
    ) -> None:
        self._acks = acks
        self._store, self._stamps, self._transactions = store, stamps, transactions
        self._has_lanes = transactions is None and compression is None and acks.acks != 0
        self._throttle, self._metrics, self._compression = throttle, metrics, compression
        # These references keep the logs open. Without them the store would open a log for each append.
        self._logs: dict[TopicPartition, PartitionLog] = {}

    def append(self, batches: list[ProducerBatch]) -> Appended:
        """Append batches of one partition whose sequences are contiguous. Raises the errors of
        `append_batches` and `Transactions.appending`. Raises DuplicateSequenceError if the log already has
        these sequences, either in batches of another producer, or at an offset that is no longer known.
        """
        where = batches[0].topic_partition
        partition = self._logs.get(where)
        if partition is None or partition.is_gone:
            partition = self._open(where)
        template = self._stamps.template(batches)
        if self._transactions is None:
            appended = self._write(partition, batches, template)
        else:
            with self._transactions.appending((where,)):
                appended = self._write(partition, batches, template)
        if appended.duplicate and not batches[0].doubt:
            raise DuplicateSequenceError(f"{where} has batches of another producer {template.producer_id}")
        if self._throttle.bound is not None:
            self.charge(appended.size)
        return appended

    def append_pieces(self, batches: list[ProducerBatch]) -> Pieces:
        """Append batches of one partition by one call of the log's `append_pieces`, which may write only the
        first of them. In a transaction, or if a batch is large, append nothing, and return NOTHING. Raises
        the errors of the log's `append_pieces`.
        """
        where = batches[0].topic_partition
        partition = self._logs.get(where)
        if partition is None or partition.is_gone:
            partition = self._open(where)
        most = min(PIECE_BYTES, partition.partition_for_write().validator.largest_batch)
        # An encoded record may be up to twice as large as the size that was counted for the record.
        if self._transactions is not None or 2 * max(map(_size_of, batches)) + HEADER_SIZE > most:
            return NOTHING
        cuts = list(accumulate(map(_records_of, batches[:-1])))
        template = self._stamps.template(batches)
        pieces = append_pieces(partition, columns_of(batches), cuts, self._compression, template)
        self.charge(pieces.size)
        return pieces

    def _open(self, where: TopicPartition) -> PartitionLog:
        self._logs[where] = partition = self._store.partition(*where)
        return partition

    def _write(self, partition: PartitionLog, batches: list[ProducerBatch], template: Template) -> Appended:
        if len(batches) == 1 and batches[0].n == 1:
            record = batches[0].record(0)
            return append_record(partition, *record, self._compression, template, acks=self._acks)
        cuts = list(accumulate(map(_records_of, batches[:-1])))
        columns, compression = columns_of(batches), self._compression
        return append_batches(partition, columns, cuts, compression, template, acks=self._acks)

    def append_record(self, batch: ProducerBatch, at: int) -> Appended:
        """Append record `at` of a batch alone, without counting its bytes for the byte rate. A retry uses the
        same sequence.
        """
        where = batch.topic_partition
        partition = self._store.partition(*where)
        with self._in_transaction(where):
            template = self._stamps.next_record(where)
            record = batch.record(at)
            appended = append_record(partition, *record, self._compression, template, acks=self._acks)
        self._stamps.written(where)
        return appended

    def _in_transaction(self, where: TopicPartition) -> contextlib.AbstractContextManager[None]:
        if self._transactions is None:
            return contextlib.nullcontext()
        return self._transactions.appending((where,))

    def charge(self, size: int) -> None:
        """Count `size` bytes for the client's byte rate."""
        if self._throttle.bound is not None:
            self._metrics.throttled(self._throttle.charge(size))

    def lane(self, lane: Lane | None, where: TopicPartition) -> Lane | None:
        """Return the `Lane` with which the C code appends single records to this partition, or None if Python
        code must append them. If `lane` is still valid, return `lane` itself.
        """
        log = self._logs.get(where)
        if not self._has_lanes or log is None or log.has_replicas:
            return None
        try:
            partition = log.partition_for_write()
        except SegstoreError:
            return None
        if lane is not None and lane.partition is partition:
            return lane
        made = Lane()
        made.topic_partition, made.context = where, partition.context
        made.partition, made.tail = partition, partition.tail.native
        return made if self._stamps.lend(made) else None

    def forget(self, where: TopicPartition) -> None:
        """Drop the reference to the log of a partition whose topic was deleted, or deleted and created
        again.
        """
        self._logs.pop(where, None)


# --- delivery ------------------------------------------------------------

log = Logger("segstore")

MOST_AT_ONCE = 1 << 20
"""The largest number of bytes of the batches in one append. The limit keeps the batches in a core's cache."""
MANY = 4
"""If there are more batches than this, `append_pieces` appends them, because it is faster for many
batches.
"""
_HELD_BACK = 0.1
"""Seconds that are added to the delivery timeout of a batch that had to wait for an earlier batch, so that
the batch still gets an attempt.
"""


class Delivery:
    """Delivers the batches of one producer. If the error `aborted` is set, all unwritten batches fail with
    this error, without another attempt.
    """

    def __init__(
        self,
        config: ProducerConfig,
        incomplete: Incomplete,
        routing: Routing,
        metrics: ProducerMetrics,
        stamps: ProducerStamps,
        appender: Appender,
        transactions: Transactions | None,
    ) -> None:
        self._config, self._incomplete, self._routing = config, incomplete, routing
        self._metrics, self._stamps, self._appender = metrics, stamps, appender
        self._transactions = transactions
        self._timeout = config.delivery_timeout_ms / 1000
        # `reported` has each partition's last error that causes retries.
        self.reported = ReportedFailures()
        self.aborted: BaseException | None = None

    def send(self, batches: list[ProducerBatch], renewed: bool = False) -> list[ProducerBatch]:
        """Append the batches of a partition. Return the batches that must be retried; all other batches have
        an outcome then.
        """
        refusal = None if self._transactions is None else self._transactions.refusal()
        if refusal is not None:
            self.fail(batches, refusal)
        if refusal is not None or not batches:
            return []
        if self._config.acks == 0:
            for group in within(batches, MOST_AT_ONCE):
                self._fire(group)
            return []
        if len(batches) > 1 and self._stamps.one_by_one(batches):
            return self._one_by_one(batches)
        if len(batches) > MANY and batches[0].results is None:
            self._metrics.in_flight = 1
            batches, error = self._try_pieces(batches)
            self._metrics.in_flight = 0
            if error is not None:
                return self._after(error, batches, renewed)
        for group in within(batches, MOST_AT_ONCE) if len(batches) != 1 else [batches]:
            if group[0] is not batches[0] and not (group := self._still_due(group)):
                continue
            self._metrics.in_flight = 1
            error = self._try(group)
            self._metrics.in_flight = 0
            if error is not None and (left := self._after(error, group, renewed)):
                return left + batches[batches.index(group[-1]) + 1 :]
        return []

    def _still_due(self, batches: list[ProducerBatch]) -> list[ProducerBatch]:
        """Fail the batches that were aborted, or have timed out, while `send` sent the batches before them.
        Return all other batches.
        """
        if self.aborted is None:
            return self.without_expired(batches)
        self.fail(batches, self.aborted)
        return []

    def without_expired(self, batches: list[ProducerBatch]) -> list[ProducerBatch]:
        """Fail the batches of a partition that are older than `delivery_timeout_ms`, and return all other
        batches. The first batch must be the oldest. Each later batch expires `_HELD_BACK` seconds later than
        `delivery_timeout_ms` says, because it had to wait for the first batch.
        """
        least = time.monotonic() - self._timeout
        if not batches or batches[0].created > least:
            return batches
        for batch in batches:
            if batch is batches[0] or batch.created <= least - _HELD_BACK:
                self.fail([batch], self._timed_out(batch))
        return [batch for batch in batches if not batch.done]

    def _timed_out(self, batch: ProducerBatch) -> KafkaTimeoutError:
        """Return the error for a batch that has timed out. The error's `__cause__` is the last error in the
        partition after the batch was created, or None.
        """
        message = (
            f"{batch.n} records for {batch.topic_partition} were not written within "
            f"delivery_timeout_ms={self._config.delivery_timeout_ms}"
        )
        last = self.reported.since(batch.topic_partition, batch.created)
        error = KafkaTimeoutError(message if last is None else f"{message}; the last error: {last}")
        error.__cause__ = last
        return error

    def lane(self, lane: Lane | None, where: TopicPartition) -> Lane | None:
        """Return the `Lane` with which the C code appends single records to this partition, or None."""
        return self._appender.lane(lane, where)

    def expiry(self, batch: ProducerBatch) -> float:
        """Return the time, in monotonic seconds, after which the batch fails if it is still not written."""
        return batch.created + self._timeout

    def last_error(self, batches: Iterable[ProducerBatch]) -> BaseException | None:
        """Find the first batch in whose partition an append has failed after the batch was created. Return
        the partition's last error, or None if there is no such batch. Any thread may call this.
        """
        errors = (self.reported.since(batch.topic_partition, batch.created) for batch in batches)
        return next((error for error in errors if error is not None), None)

    # --- one append --------------------------------------------------------------------------

    def _try_pieces(self, batches: list[ProducerBatch]) -> tuple[list[ProducerBatch], Exception | None]:
        """Append as many of the first batches as `append_pieces` can. Return (unwritten batches, error that
        stopped the append, or None). If the error is None, the caller appends the unwritten batches by
        `_try`.
        """
        began = time.monotonic()
        try:
            offsets, append_times, size, refused = self._appender.append_pieces(batches)
        except Exception as error:
            return batches, _without_traceback(error)
        done = batches[: len(offsets)]
        for batch, offset, append_time in zip(done, offsets, append_times, strict=True):
            batch.base_offset, batch.append_time = offset, append_time
        self._done(done, size, began)
        left = batches[len(done) :]
        if refused is not None:
            return left, _without_traceback(refused)
        self._stamps.take_back(left)
        return left, None

    def _done(self, batches: list[ProducerBatch], size: int, began: float) -> None:
        """Complete batches that were appended, and record the append in the metrics."""
        if not batches:
            return
        # The metrics are recorded before the futures are done.
        self._metrics.sent(batches, size, began, time.monotonic())
        if self.reported:
            self._log_recovery(batches[0])
        self._incomplete.complete(batches)

    def _try(self, batches: list[ProducerBatch]) -> Exception | None:
        if batches[0].results is not None:
            return InvalidArgumentError("it was split before")
        began = time.monotonic()
        try:
            appended = self._appender.append(batches)
        except DuplicateSequenceError as error:
            if not batches[0].doubt:
                return _without_traceback(error)
            # The log has the batch, at an unknown offset.
            appended = Appended(-1, -1, 0)
        except Exception as error:
            return _without_traceback(error)
        first = appended.first
        for batch in batches:
            batch.base_offset, batch.append_time = first, appended.append_time
            first += batch.n
        self._done(batches, appended.size, began)
        return None

    def _log_recovery(self, batch: ProducerBatch) -> None:
        if self.reported.over(batch.topic_partition):
            log.info("records for %s are written again", batch.topic_partition)

    def _fire(self, batches: list[ProducerBatch]) -> None:
        """Append batches with acks=0. If the append fails, log the error, and do not retry."""
        began = time.monotonic()
        try:
            appended = self._appender.append(batches)
        except Exception as error:
            if self.reported.is_new(batches[0].topic_partition, error):
                log.warning("acks=0: records for %s are not written: %s", batches[0].topic_partition, error)
            for batch in batches:
                self._metrics.failed(batch, batch.n)
        else:
            self._metrics.sent(batches, appended.size, began, time.monotonic())
            self._log_recovery(batches[0])
        self._incomplete.complete(batches)

    def _one_by_one(self, batches: list[ProducerBatch]) -> list[ProducerBatch]:
        """Append each batch alone, in order. If a batch must be retried, return that batch and all later
        batches.
        """
        for i, batch in enumerate(batches):
            if self.send([batch]):
                return batches[i:]
        return []

    def _send_each(self, batch: ProducerBatch) -> list[ProducerBatch]:
        """Append each record of the batch alone; each record gets its own outcome. If an error is temporary,
        return the batch, because it must be retried. The next call continues with the record that failed.
        """
        if batch.results is None:
            batch.results = []
            self._metrics.split()
        began, stored = time.monotonic(), 0
        while len(batch.results) < batch.n:
            try:
                appended = self._appender.append_record(batch, len(batch.results))
            except Exception as error:
                if passes(error):
                    return self._again([batch], error)
                batch.results.append(self._outcome(_without_traceback(error)))
            else:
                batch.results.append(appended.first)
                batch.append_time = appended.append_time
                stored += appended.size
                self._log_recovery(batch)
        failed = sum(isinstance(result, BaseException) for result in batch.results)
        self._appender.charge(stored)
        self._metrics.failed(batch, failed)
        self._metrics.sent([batch], stored, began, time.monotonic())
        self._incomplete.complete([batch])
        return []

    # --- failures -------------------------------------------------------------------------

    def _after(self, error: Exception, batches: list[ProducerBatch], renewed: bool) -> list[ProducerBatch]:
        """Handle a failed append: split the batches, send them again, or fail them. Return the batches that
        must be retried later.
        """
        self._stamps.failed(batches, error)
        if passes(error):
            return self._again(batches, error)
        if len(batches) > 1:
            return self._one_by_one(batches)
        batch = batches[0]
        if batch.n > 1 and isinstance(error, InvalidArgumentError) and not (batch.doubt and batch.stamp):
            return self._send_each(batch)
        if not renewed and self._stamps.renew(batch, error):
            return self.send([batch], renewed=True)
        self.fail(batches, error)
        return []

    def _again(self, batches: list[ProducerBatch], error: Exception) -> list[ProducerBatch]:
        """Fail the batches that have no retry left. Return all other batches, in order. The caller must retry
        them before later batches.
        """
        spent = [batch for batch in batches if batch.attempts >= self._config.retries]
        if self.aborted is not None:
            self.fail(batches, self.aborted)
            return []
        self.fail(spent, error)
        left = [batch for batch in batches if not batch.done]
        for batch in left:
            batch.attempts += 1
        if left:
            self._warn(left[0], error)
            self._metrics.retried(left)
        return left

    def _warn(self, batch: ProducerBatch, error: Exception) -> None:
        """Log a warning, unless the partition's last warning had the same cause."""
        if self.reported.is_new(batch.topic_partition, error):
            log.warning(
                "records for %s can't be written now, and are tried again for delivery_timeout_ms=%s: %s",
                batch.topic_partition,
                self._config.delivery_timeout_ms,
                error,
            )

    def fail(self, batches: list[ProducerBatch], error: BaseException) -> None:
        """Fail batches of one partition with `error`."""
        if not batches:
            return
        where = batches[0].topic_partition
        if isinstance(error, StoreClosedError) and self.aborted is not None:
            # `aborted` is the reason why records are aborted, and says more than StoreClosedError.
            error = self.aborted
        if isinstance(error, StoreClosedError | UnknownTopicOrPartitionError):
            self._routing.forget(where.topic)
            self._appender.forget(where)
            self.reported.over(where)
        error = self._outcome(error)
        for batch in batches:
            batch.error = error
            self._stamps.given_up(batch)
            # The metrics are recorded before the futures are done.
            self._metrics.failed(batch, batch.n)
        self._incomplete.complete(batches)

    def _outcome(self, error: BaseException) -> BaseException:
        """Return the error that the futures of failed records get."""
        return copy_of(error if self._transactions is None else self._transactions.failed(error))


def _without_traceback(error: Exception) -> Exception:
    """Log the error with its traceback, at DEBUG if the error is expected, else at ERROR. Return a copy
    without the traceback, because the traceback and the batches would form a reference cycle.
    """
    expected = isinstance(error, SegstoreError | OSError)
    log.log(logging.DEBUG if expected else logging.ERROR, "records were not written", exc_info=error)
    return copy_of(error)
