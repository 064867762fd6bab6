"""`Sequences` and `ProducerStamps`: the producer ids, epochs and sequences by which the log recognises a
repeated batch (KIP-98, KIP-360).

Threads: the sender's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from segstore._native._producer import Lane
from segstore.client.producer.batch import ProducerBatch, Stamp
from segstore.client.producer.config import ProducerConfig
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
    NotEnoughReplicasError,
    OutOfOrderSequenceError,
    UnknownTopicOrPartitionError,
)
from segstore.integers import INT32_MAX
from segstore.records import HEADER_SIZE, Template
from segstore.records.encoded import PLAIN
from segstore.records.header import TRANSACTIONAL_FLAG
from segstore.storage.log import transaction_markers
from segstore.storage.store.store import Store

# --- sequences ---------------------------------------------------------------------------------

# `Sequences`: each partition has its own sequences, and a batch that is retried keeps its stamp (producer id,
# epoch, sequence). Sequences must have no gap, and no sequence may be used twice. So the partition continues
# in a new epoch (KIP-360) in two cases: a batch has failed for good and the log may have it, or the log lacks
# the previous batch. `restart` is called only while the sender has no batch of the producer.

# The sequence after the last one is 0.
_LAST = INT32_MAX
_MAX_EPOCH = (1 << 15) - 1
Identity = tuple[int, int]
# `_doubt_of`, `_stamp` and `_template` are implemented in C.
_doubt_of = attrgetter("doubt")
_stamp: Callable[[tuple[Any, ...]], Stamp] = partial(tuple.__new__, Stamp)
_template: Callable[[tuple[Any, ...]], Template] = partial(tuple.__new__, Template)


class _Partition:
    """The producer id, epoch and next sequence of one partition. The C code (`_native/post.c`) also
    increments `next`.
    """

    __slots__ = ("epoch", "next", "producer_id")

    def __init__(self, identity: Identity) -> None:
        self.producer_id, self.epoch = identity
        self.next = 0


class Sequences:
    """The sequences of one producer. The function `identity` returns (producer id, epoch). `identity` is
    called when the first batch needs a stamp, and may raise StorageError.
    """

    def __init__(self, identity: Callable[[], Identity], new_id: Callable[[int], int] | None) -> None:
        """`new_id` returns a producer id that is larger than its argument; `new_id` is None for a
        transactional producer, whose ids come from the coordinator.
        """
        self._first, self._new_id = identity, new_id
        self._identity: Identity | None = None
        self._attributes = TRANSACTIONAL_FLAG if new_id is None else 0
        self._partitions: dict[TopicPartition, _Partition] = {}

    def restart(self) -> None:
        """Drop the producer id and epoch; they are read again when a batch needs them. All partitions begin
        at sequence 0.
        """
        self._identity = None
        self._partitions.clear()

    def _partition(self, topic_partition: TopicPartition) -> _Partition:
        partition = self._partitions.get(topic_partition)
        if partition is None:
            if self._identity is None:
                self._identity = self._first()
            partition = self._partitions[topic_partition] = _Partition(self._identity)
        return partition

    def of(self, topic_partition: TopicPartition) -> _Partition | None:
        """Return the `_Partition` of a partition, or None if the producer has used no sequence there yet."""
        return self._partitions.get(topic_partition)

    def template(self, batches: Sequence[ProducerBatch]) -> Template:
        """Return the header for one append of batches of a partition. A batch that already has a stamp must
        be the only one in `batches`.
        """
        first = batches[0].stamp
        if first is None:
            where = batches[0].topic_partition
            at = self._partitions.get(where) or self._partition(where)
            for batch in batches:
                batch.stamp = _stamp((at.producer_id, at.epoch, at.next))
                at.next = (at.next + batch.n) & _LAST
            first = batches[0].stamp
            assert first is not None
        return _template((self._attributes, *first, 0, 0, -1))

    def next_record(self, topic_partition: TopicPartition) -> Template:
        """Return the header of a batch with only the next record. Further calls return the same header until
        `written` is called.
        """
        at = self._partition(topic_partition)
        return Template(self._attributes, at.producer_id, at.epoch, at.next)

    def written(self, topic_partition: TopicPartition) -> None:
        """Go on to the next sequence, because the record of `next_record` was written."""
        at = self._partition(topic_partition)
        at.next = (at.next + 1) & _LAST

    def take_back(self, batches: Sequence[ProducerBatch]) -> None:
        """Remove the stamps of `batches`, so that their sequences can be used again. The batches must be
        those that were stamped last in their partition, and the log must not have them.
        """
        at, first = self._partition(batches[0].topic_partition), batches[0].stamp
        if first is not None and (at.producer_id, at.epoch) == first[:2]:
            at.next = first.sequence
        for batch in batches:
            batch.stamp = None

    def lost(self, batch: ProducerBatch) -> None:
        """Continue the batch's partition in a new epoch, from sequence 0, because it is unknown whether the
        log has this batch.
        """
        at = self._partitions.get(batch.topic_partition)
        # A transactional producer needs no new epoch here: the abort of its transaction increments the epoch.
        if at is not None and self._new_id is not None and self._current(at, batch):
            self._bump(at, -1)

    def renew(self, batch: ProducerBatch, known: int) -> bool:
        """Remove the stamp of a batch that the log has refused because of the batch's epoch or sequence;
        continue the partition in a new epoch, and return True. If another producer has used the same producer
        id, `known` is the largest producer id in the log, and the partition gets a larger one. If no other
        producer has used it, `known` is -1. For a transactional producer, change nothing and return False.
        """
        if self._new_id is None:
            return False
        at = self._partition(batch.topic_partition)
        if batch.stamp is None or self._current(at, batch):
            self._bump(at, known)
        batch.stamp = None
        return True

    def _current(self, at: _Partition, batch: ProducerBatch) -> bool:
        return batch.stamp is not None and batch.stamp[:2] == (at.producer_id, at.epoch)

    def _bump(self, at: _Partition, known: int) -> None:
        assert self._new_id is not None
        at.next = 0
        if known < 0 and at.epoch < _MAX_EPOCH:
            at.epoch += 1
        else:
            at.producer_id, at.epoch = self._new_id(known), 0


# --- idempotence ------------------------------------------------------------

# The errors with which a log refuses a batch whose stamp does not match what the log knows about the
# producer. The batch is not in the log then.
_MISFITS = (OutOfOrderSequenceError, InvalidProducerEpochError, DuplicateSequenceError)
# Errors that are raised before anything is written.
_NOTHING_WRITTEN = (
    InvalidArgumentError,
    InvalidTypeError,
    NotEnoughReplicasError,
    UnknownTopicOrPartitionError,
    *_MISFITS,
)


def sequences_of(store: Store, config: ProducerConfig, transactions: Transactions | None) -> Sequences | None:
    """Return the `Sequences` of a transactional or idempotent producer, or None for any other producer."""
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


class ProducerStamps:
    """The stamps (producer id, epoch, sequence) of a producer's batches. Without idempotence `sequences` is
    None, so that no batch gets a stamp, and the log can't recognise a repeated batch.
    """

    def __init__(self, store: Store, sequences: Sequences | None) -> None:
        self._store, self._sequences = store, sequences
        self.template: Callable[[Sequence[ProducerBatch]], Template]
        """Returns the header for one append of batches of a partition."""
        self.template = (lambda _: PLAIN) if sequences is None else sequences.template

    def lend(self, lane: Lane) -> bool:
        """Store the partition's sequences in `lane`, so that the C code can use the next ones. Return False
        if the lane can't be used, because the producer is idempotent and the partition has no sequences yet.
        """
        lane.sequences = None if self._sequences is None else self._sequences.of(lane.topic_partition)
        return self._sequences is None or lane.sequences is not None

    # --- before an append -------------------------------------------------------------------

    def next_record(self, where: TopicPartition) -> Template:
        """Return the header of a batch with only the partition's next record. Further calls return the same
        header until `written` is called.
        """
        return PLAIN if self._sequences is None else self._sequences.next_record(where)

    def one_by_one(self, batches: Sequence[ProducerBatch]) -> bool:
        """Return whether the log may already have some of the batches. If so, the caller must append each
        batch alone: the log recognises a repeated batch only if it is appended alone.
        """
        return self._sequences is not None and any(map(_doubt_of, batches))

    # --- after an append --------------------------------------------------------------------

    def written(self, where: TopicPartition) -> None:
        """Go on to the next sequence, because the record of `next_record` was written."""
        if self._sequences is not None:
            self._sequences.written(where)

    def failed(self, batches: Sequence[ProducerBatch], error: Exception) -> None:
        """Handle a failed append. If nothing was written, the sequences of the batches can be used again. If
        something may have been written, set `doubt` in the batches.
        """
        if self._sequences is None or any(batch.doubt for batch in batches):
            return
        if isinstance(error, _NOTHING_WRITTEN):
            self._sequences.take_back(batches)
        else:
            for batch in batches:
                batch.doubt = True

    def take_back(self, batches: Sequence[ProducerBatch]) -> None:
        """Remove the stamps of unwritten batches, if they have any, so that their sequences can be used
        again. The batches must be those that were stamped last in their partition.
        """
        if self._sequences is not None and batches and batches[0].stamp is not None:
            self._sequences.take_back(batches)

    def renew(self, batch: ProducerBatch, error: Exception) -> bool:
        """Remove the stamp of a batch that the log has refused because of the batch's epoch or sequence.
        Return True if the batch must be sent again, with a new stamp, or False if the batch must fail.
        """
        if self._sequences is None or not isinstance(error, _MISFITS):
            return False
        # If an earlier attempt wrote the batch as several record batches, the log may have only some of the
        # record batches.
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
        """Return whether the batch is so small that an append always writes it as one record batch."""
        settings = self._store.topics()[batch.topic_partition.topic].settings
        most = min(settings.max_message_bytes, settings.segment_bytes)
        return batch.size + MAX_RECORD_OVERHEAD * batch.n + HEADER_SIZE < most // 6 * 5

    def given_up(self, batch: ProducerBatch) -> None:
        """Called after this batch has failed for good. If the log may have the batch, and the producer is not
        transactional, the partition's later batches get a new epoch.
        """
        if self._sequences is not None and batch.stamp is not None:
            self._sequences.lost(batch)
