"""`Appender`: puts batches, or single records, into the store's logs. On disk: through those.

Threads: the sender's. Encoding, compression and the append happen here, with no lock of the producer's held.
"""

from __future__ import annotations

import contextlib
from itertools import accumulate
from typing import TYPE_CHECKING

from segstore.client.producer.batch import ProducerBatch, columns_of
from segstore.client.producer.metrics import ProducerMetrics
from segstore.client.producer.stamps import Stamps
from segstore.client.producer.transactions import Transactions
from segstore.coordinator.quotas.throttle import Throttle
from segstore.coordinator.structs import TopicPartition
from segstore.errors import DuplicateSequenceError
from segstore.records import Template
from segstore.storage.log.append import Appended, append_batches, append_record

if TYPE_CHECKING:
    from segstore.storage.store.partition_log import PartitionLog
    from segstore.storage.store.store import Store


class Appender:
    """`compression` is the producer's; `throttle` is charged with what is written."""

    def __init__(
        self,
        store: Store,
        stamps: Stamps,
        transactions: Transactions | None,
        throttle: Throttle,
        metrics: ProducerMetrics,
        compression: str | None,
    ) -> None:
        self._store, self._stamps, self._transactions = store, stamps, transactions
        self._throttle, self._metrics, self._compression = throttle, metrics, compression
        # Held by nobody, the store would make a log anew for each append.
        self._logs: dict[TopicPartition, PartitionLog] = {}

    def append(self, batches: list[ProducerBatch]) -> Appended:
        """Batches of one partition, contiguous. DuplicateSequenceError: others have their sequences, or it is
        not known where they are; what `append_batches` raises, and `Transactions.appending`.
        """
        where = batches[0].topic_partition
        partition = self._logs[where] = self._store.partition(*where)
        template = self._stamps.template(batches)
        if self._transactions is None:
            appended = self._write(partition, batches, template)
        else:
            with self._transactions.appending((where,)):
                appended = self._write(partition, batches, template)
        if appended.duplicate and not batches[0].doubt:
            raise DuplicateSequenceError(f"{where} has batches of another producer {template.producer_id}")
        self.charge(appended.size)
        return appended

    def _write(self, partition: PartitionLog, batches: list[ProducerBatch], template: Template) -> Appended:
        if len(batches) == 1 and batches[0].n == 1:
            return append_record(partition, *batches[0].record(0), self._compression, template)
        cuts = list(accumulate(batch.n for batch in batches[:-1]))
        return append_batches(partition, columns_of(batches), cuts, self._compression, template)

    def append_record(self, batch: ProducerBatch, at: int) -> Appended:
        """Record `at` of a batch alone, not charged. Its sequence stays the same until it is in the log."""
        where = batch.topic_partition
        partition = self._store.partition(*where)
        with self._in_transaction(where):
            template = self._stamps.next_record(where)
            appended = append_record(partition, *batch.record(at), self._compression, template)
        self._stamps.written(where)
        return appended

    def _in_transaction(self, where: TopicPartition) -> contextlib.AbstractContextManager[None]:
        if self._transactions is None:
            return contextlib.nullcontext()
        return self._transactions.appending((where,))

    def charge(self, size: int) -> None:
        """So many bytes count for the client's byte rate."""
        if self._throttle.bound is not None:
            self._metrics.throttled(self._throttle.charge(size))

    def forget(self, where: TopicPartition) -> None:
        """The topic is gone, or is another now."""
        self._logs.pop(where, None)
