"""`MarkerWriter`: writes a transaction's markers into its partitions, and reports the outcome to the groups
whose offsets the transaction commits.

On disk: control batches in the partitions, through `storage.log.transaction_markers`.
Threads: any; the caller holds the transactional id's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from segstore.coordinator.retriable import passes
from segstore.coordinator.shared import existing
from segstore.coordinator.structs import TopicPartition
from segstore.coordinator.transaction.metadata import Begin, TransactionMetadata
from segstore.coordinator.transaction.state_log import TransactionStateLog
from segstore.errors import (
    CorruptCheckpointError,
    InvalidProducerEpochError,
    SegstoreError,
    StorageError,
    UnknownTopicOrPartitionError,
    first_of,
)
from segstore.logger import Logger
from segstore.records.control import ABORT, COMMIT, Marker
from segstore.storage.log import transaction_markers
from segstore.storage.log.transaction_markers import Shown
from segstore.storage.meta.topic_info import CONSUMER_OFFSETS
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

log = Logger("segstore")


class MarkerWriter:
    """Writes the markers of transactions: those in PrepareCommit or PrepareAbort, and lost ones (`Lost`)."""

    def __init__(self, store: Store, state_log: TransactionStateLog) -> None:
        self._store, self._state_log = store, state_log

    def write_markers(self, transactional_id: str, decided: TransactionMetadata) -> None:
        """Write the markers of a transaction in PrepareCommit or PrepareAbort. Raises the errors of `end`."""
        kind = COMMIT if decided.state.commits else ABORT
        epoch = self._state_log.epoch(transactional_id)
        marker = Marker(decided.producer_id, decided.producer_epoch, kind, epoch)
        self.end(decided.partitions, marker, decided.transaction_epoch)

    def end(self, partitions: Collection[TopicPartition], marker: Marker, transaction_epoch: int) -> None:
        """Write the markers of a transaction, and make the markers visible in all partitions of the
        transaction at once. Then apply the outcome to the groups' offsets, and flush the markers as the
        partitions' settings require. `transaction_epoch` is the epoch of the transaction's records. A
        repeated call does nothing; deleted partitions need no marker. Raises StorageError: then either no
        reader sees any of the markers, or all readers see all of them, and the markers may not be durable. If
        a damaged partition can't be opened, the error of this partition is raised after all other partitions
        have got their markers.
        """
        unusable: list[SegstoreError] = []
        shown = self._show(self._logs(partitions, unusable), marker, transaction_epoch)
        kept = [at.partition for at in partitions if at.topic == CONSUMER_OFFSETS]
        if kept:
            from segstore.coordinator.offsets.group_offsets import GroupOffsets

            # If the store has no `GroupOffsets`, no offsets are in memory: a later load of
            # `__consumer_offsets` reads the markers.
            offsets = existing(self._store, GroupOffsets)
            if offsets is not None:
                offsets.complete(marker.producer_id, marker.kind == COMMIT, kept)
        transaction_markers.flush_markers(shown)
        if unusable:
            raise first_of(unusable)

    def _show(self, logs: list[PartitionLog], marker: Marker, transaction_epoch: int) -> list[Shown]:
        try:
            return transaction_markers.show_end(logs, marker, transaction_epoch)
        except InvalidProducerEpochError as error:
            # Some partitions know a later epoch, because a power cut has cut the end of
            # `__transaction_state`. These partitions refuse the marker, so it is written only to the other
            # partitions.
            log.warning("%s", error)
            known = marker.producer_id, marker.producer_epoch
            logs = [each for each in logs if transaction_markers.producer_epoch(each, known[0]) <= known[1]]
            return transaction_markers.show_end(logs, marker, transaction_epoch)

    def _logs(
        self, partitions: Iterable[TopicPartition], unusable: list[SegstoreError]
    ) -> list[PartitionLog]:
        """Return the logs of the partitions that exist. Permanent errors are appended to `unusable`; other
        errors are raised.
        """
        logs = []
        for topic, partition in sorted(partitions):
            try:
                logs.append(self._store.partition(topic, partition))
            except UnknownTopicOrPartitionError:
                log.info("%s-%d is gone: its transaction ends without it", topic, partition)
            except (CorruptCheckpointError, StorageError) as error:
                if passes(error):
                    raise
                unusable.append(error)
        return logs

    def begins(self, producer_id: int, partitions: Collection[TopicPartition]) -> frozenset[Begin] | None:
        """Return the producer's first transactional record in each partition that has one; None if a
        partition can't be read.
        """
        try:
            topics, unusable = self._store.topics(), list[SegstoreError]()
            begins = {
                Begin(TopicPartition(log.topic, log.partition), topics[log.topic].topic_id, *first)
                for log in self._logs(partitions, unusable)
                if (first := transaction_markers.first_record(log, producer_id)) is not None
            }
        except (SegstoreError, KeyError) as error:
            log.warning("where the transaction of producer %d begins is not known: %r", producer_id, error)
            return None
        return None if unusable else frozenset(begins)

    def durable(self, partitions: Collection[TopicPartition]) -> bool:
        """Return whether any partition has flush.messages=1, and therefore syncs its marker at once: the
        state PrepareCommit must then be synced first.
        """
        return any(
            each.partition_for_write().config.flush_messages == 1 for each in self._logs(partitions, [])
        )
