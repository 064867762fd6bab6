"""The producer ids, epochs and sequences that batches are stamped with, by which the log knows one that it
has already (KIP-98). Nothing on disk.

Each partition counts for itself. A batch keeps its stamp over retries. Where one is given up that may be in
the log, or the log does not know the one before, the partition goes on in a new epoch (KIP-360): there must
be no gap, and no sequence twice.
Threads: the sender's; `restart` when it has nothing of the producer's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from segstore.client.producer.batch import ProducerBatch, Stamp
from segstore.coordinator.structs import TopicPartition
from segstore.records import Template
from segstore.records.header import TRANSACTIONAL_FLAG

_LAST = (1 << 31) - 1  # the sequence after it is 0
_MAX_EPOCH = (1 << 15) - 1
Identity = tuple[int, int]


class _Partition:
    """Where one partition is: `next` is the sequence of its next new record."""

    __slots__ = ("epoch", "next", "producer_id")

    def __init__(self, identity: Identity) -> None:
        self.producer_id, self.epoch = identity
        self.next = 0


class Sequences:
    """`identity` gives producer id and epoch, when they are needed first; StorageError passes through."""

    def __init__(self, identity: Callable[[], Identity], new_id: Callable[[int], int] | None) -> None:
        """`new_id` gives an id above another; None for a transactional producer, whose coordinator does."""
        self._first, self._new_id = identity, new_id
        self._identity: Identity | None = None
        self._attributes = TRANSACTIONAL_FLAG if new_id is None else 0
        self._partitions: dict[TopicPartition, _Partition] = {}

    def restart(self) -> None:
        """Ask for the identity anew: all partitions count from 0."""
        self._identity = None
        self._partitions.clear()

    def _partition(self, topic_partition: TopicPartition) -> _Partition:
        found = self._partitions.get(topic_partition)
        if found is None:
            if self._identity is None:
                self._identity = self._first()
            found = self._partitions[topic_partition] = _Partition(self._identity)
        return found

    def template(self, batches: Sequence[ProducerBatch]) -> Template:
        """The header of batches of one partition that are appended together: all new, or one alone."""
        first = batches[0].stamp
        if first is None:
            at = self._partition(batches[0].topic_partition)
            for batch in batches:
                batch.stamp = Stamp(at.producer_id, at.epoch, at.next)
                at.next = (at.next + batch.n) & _LAST
            first = batches[0].stamp
            assert first is not None
        return Template(self._attributes, *first)

    def next_record(self, topic_partition: TopicPartition) -> Template:
        """The header of a batch with the next record alone: the same until it is `written`."""
        at = self._partition(topic_partition)
        return Template(self._attributes, at.producer_id, at.epoch, at.next)

    def written(self, topic_partition: TopicPartition) -> None:
        """What `next_record` was for is in the log."""
        at = self._partition(topic_partition)
        at.next = (at.next + 1) & _LAST

    def take_back(self, batches: Sequence[ProducerBatch]) -> None:
        """These, the last that were stamped in their partition, are not in the log and never were."""
        at, first = self._partition(batches[0].topic_partition), batches[0].stamp
        if first is not None and (at.producer_id, at.epoch) == first[:2]:
            at.next = first.sequence
        for batch in batches:
            batch.stamp = None

    def lost(self, batch: ProducerBatch) -> None:
        """It will never be known whether this is in the log: go on in a new epoch, from sequence 0."""
        at = self._partitions.get(batch.topic_partition)
        # A transaction with such a batch is aborted, which goes to a new epoch.
        if at is not None and self._new_id is not None and self._current(at, batch):
            self._bump(at, -1)

    def renew(self, batch: ProducerBatch, known: int) -> bool:
        """The log says that this batch is not in it, and can't come next: stamp it anew. `known`: where its
        epoch or sequence are another's, the largest producer id there, else -1. False in a transaction.
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
