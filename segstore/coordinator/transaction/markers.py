"""`MarkerWriter`: writes the end of a transaction into its partitions, as markers, and tells the groups whose
offsets it committed.

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
    """Writes markers; the coordinator decides which and when."""

    def __init__(self, store: Store, state_log: TransactionStateLog) -> None:
        self._store, self._state_log = store, state_log

    def write_markers(self, transactional_id: str, decided: TransactionMetadata) -> None:
        """Write the markers of a decided transaction. Raises what `end` raises."""
        kind = COMMIT if decided.state.commits else ABORT
        epoch = self._state_log.epoch(transactional_id)
        marker = Marker(decided.producer_id, decided.producer_epoch, kind, epoch)
        self.end(decided.partitions, marker, decided.transaction_epoch)

    def end(self, partitions: Collection[TopicPartition], marker: Marker, transaction_epoch: int) -> None:
        """Make the end of a transaction, whose records have `transaction_epoch`, visible in all its
        partitions at once, then to the groups, and as durable as the partitions ask for. Repeating it does
        nothing; deleted partitions need no end. Raises StorageError: either no reader sees any of the
        markers, or all see them and they may not be durable. For a damaged partition, which can't be
        opened, the error is raised after the others have their markers.
        """
        unusable: list[SegstoreError] = []
        shown = self._show(self._logs(partitions, unusable), marker, transaction_epoch)
        kept = [at.partition for at in partitions if at.topic == CONSUMER_OFFSETS]
        if kept:
            from segstore.coordinator.offsets.group_offsets import GroupOffsets

            # Partitions of `__consumer_offsets` that were not read yet will be read with their markers.
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
            # A power cut took the end of `__transaction_state`: some partitions have their ends already.
            log.warning("%s", error)
            known = marker.producer_id, marker.producer_epoch
            logs = [each for each in logs if transaction_markers.producer_epoch(each, known[0]) <= known[1]]
            return transaction_markers.show_end(logs, marker, transaction_epoch)

    def _logs(
        self, partitions: Iterable[TopicPartition], unusable: list[SegstoreError]
    ) -> list[PartitionLog]:
        """Return the logs of the partitions that exist. Errors that will not pass are put into `unusable`."""
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
        """Return where the producer's transaction begins in the partitions that have records of it; None if
        one of them can't be used: its end is decided for all that.
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
        """Return whether some partition promises to survive power loss: then the decision must survive
        too.
        """
        return any(
            each.partition_for_write().config.flush_messages == 1 for each in self._logs(partitions, [])
        )
