"""What batches are stamped with, and what failed appends tell of their stamps (KIP-98, KIP-360).

Nothing on disk. Threads: the sender's.
"""

from __future__ import annotations

from collections.abc import Sequence

from segstore.client.producer.batch import ProducerBatch
from segstore.client.producer.config import ProducerConfig
from segstore.client.producer.idempotence import Sequences
from segstore.client.producer.record import MAX_RECORD_OVERHEAD
from segstore.client.producer.transactions import Transactions
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import TopicPartition
from segstore.coordinator.transaction.producer_ids import ProducerIds
from segstore.errors import (
    DuplicateSequenceError,
    InvalidArgumentError,
    InvalidProducerEpochError,
    InvalidTypeError,
    OutOfOrderSequenceError,
    UnknownTopicOrPartitionError,
)
from segstore.records import HEADER_SIZE, Template
from segstore.records.encoded import PLAIN
from segstore.storage.log import transaction_markers
from segstore.storage.store.store import Store

# The log knows the producer otherwise than its stamps say: the batch is not in it, and can't come next.
_MISFITS = (OutOfOrderSequenceError, InvalidProducerEpochError, DuplicateSequenceError)
# What is told before anything is written.
_NOTHING_WRITTEN = (InvalidArgumentError, InvalidTypeError, UnknownTopicOrPartitionError, *_MISFITS)


def sequences_of(store: Store, config: ProducerConfig, transactions: Transactions | None) -> Sequences | None:
    """Those of a producer that is transactional, or idempotent."""
    if transactions is not None:
        made = Sequences(lambda: transactions.identity, None)
        transactions.restart = made.restart
        return made
    if not config.enable_idempotence:
        return None
    return Sequences(
        lambda: (shared(store, ProducerIds).next(), 0),
        lambda above: shared(store, ProducerIds).next(above),
    )


class Stamps:
    """`sequences` None: without idempotence nothing is stamped, and nothing is known again."""

    def __init__(self, store: Store, sequences: Sequences | None) -> None:
        self._store, self._sequences = store, sequences

    # --- before an append -------------------------------------------------------------------

    def template(self, batches: Sequence[ProducerBatch]) -> Template:
        """The header of batches of one partition that are appended together."""
        return PLAIN if self._sequences is None else self._sequences.template(batches)

    def next_record(self, where: TopicPartition) -> Template:
        """The header of a batch with the partition's next record alone: the same until it is `written`."""
        return PLAIN if self._sequences is None else self._sequences.next_record(where)

    def one_by_one(self, batches: Sequence[ProducerBatch]) -> bool:
        """Whether some may be in the log, which knows each again only alone."""
        return len(batches) > 1 and self._sequences is not None and any(batch.doubt for batch in batches)

    # --- after it ---------------------------------------------------------------------------

    def written(self, where: TopicPartition) -> None:
        """What `next_record` was for is in the log."""
        if self._sequences is not None:
            self._sequences.written(where)

    def failed(self, batches: Sequence[ProducerBatch], error: Exception) -> None:
        """Remember whether they may be in the log all the same."""
        if self._sequences is None or any(batch.doubt for batch in batches):
            return
        if isinstance(error, _NOTHING_WRITTEN):
            self._sequences.take_back(batches)
        else:
            for batch in batches:
                batch.doubt = True

    def renew(self, batch: ProducerBatch, error: Exception) -> bool:
        """Whether the batch, which is not in the log, is to be sent with another stamp."""
        if self._sequences is None or not isinstance(error, _MISFITS):
            return False
        if batch.doubt and not self._one_record_batch(batch):
            return False
        partition = self._store.partition(*batch.topic_partition)
        known = (
            -1
            if isinstance(error, OutOfOrderSequenceError)
            else transaction_markers.max_producer_id(partition)
        )
        return self._sequences.renew(batch, known)

    def _one_record_batch(self, batch: ProducerBatch) -> bool:
        """Whether the log surely has it as one record batch: of several it can't tell whether they are all
        there.
        """
        settings = self._store.topics()[batch.topic_partition.topic].settings
        most = min(settings.max_message_bytes, settings.segment_bytes)
        return batch.size + MAX_RECORD_OVERHEAD * batch.n + HEADER_SIZE < most // 6 * 5

    def given_up(self, batch: ProducerBatch) -> None:
        """It will not be tried again: see that those behind it can be."""
        if self._sequences is not None and batch.stamp is not None:
            self._sequences.lost(batch)
