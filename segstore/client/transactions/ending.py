"""How a transaction's end reaches the partitions: markers, and offsets that it committed.

On disk: control batches in the partitions, through `storage.markers`.
Threads: any; the caller holds the transactional id's lock.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import NamedTuple

from segstore.client.retriable import passes
from segstore.client.shared import existing
from segstore.client.structs import TopicPartition
from segstore.client.transactions.metadata import State, TransactionMetadata
from segstore.client.transactions.state_log import TransactionStateLog
from segstore.errors import (
    CorruptCheckpointError,
    InvalidProducerEpochError,
    SegstoreError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from segstore.records.header import NO_EPOCH
from segstore.storage import markers
from segstore.storage.log import PartitionLog
from segstore.storage.store import Store

log = logging.getLogger("segstore")
OFFSETS = "__consumer_offsets"


class Dangling(NamedTuple):
    """A transaction that is open in a partition, and of which `__transaction_state` knows nothing."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int


class Ending:
    """Writes markers; which and when is the coordinator's."""

    def __init__(self, store: Store, state_log: TransactionStateLog) -> None:
        self._store, self._state_log = store, state_log

    def write_markers(self, transactional_id: str, decided: TransactionMetadata) -> None:
        """Show the transaction's end in all its partitions at once, then to the groups. Doing it again does
        nothing. What was deleted meanwhile needs no end. StorageError: nobody sees any of it. Of a partition
        that is damaged, so that nobody can open it, the error is raised when the others have their ends.
        """
        commit = decided.state is State.PREPARE_COMMIT
        unusable: list[SegstoreError] = []
        logs = self._logs(decided.partitions, unusable)
        if logs:
            self._end(logs, decided, self._state_log.epoch(transactional_id), commit)
        if any(topic == OFFSETS for topic, _ in decided.partitions):
            from segstore.client.groups.offsets import GroupOffsets

            # Offsets that nobody has read yet are read with the markers.
            offsets = existing(self._store, GroupOffsets)
            if offsets is not None:
                offsets.complete(decided.producer_id, commit)
        if unusable:
            raise unusable[0]

    def _end(
        self, logs: list[PartitionLog], decided: TransactionMetadata, coordinator_epoch: int, commit: bool
    ) -> None:
        producer_id, epoch = decided.producer_id, decided.producer_epoch
        try:
            markers.end_transaction(logs, producer_id, epoch, coordinator_epoch, commit)
        except InvalidProducerEpochError as error:
            # A power cut took the end of `__transaction_state`, which knew that these were ended before.
            log.warning("%s", error)
            logs = [each for each in logs if markers.producer_epoch(each, producer_id) <= epoch]
            markers.end_transaction(logs, producer_id, epoch, coordinator_epoch, commit)

    def _logs(
        self, partitions: Iterable[TopicPartition], unusable: list[SegstoreError] | None = None
    ) -> list[PartitionLog]:
        """Those that there are. With `unusable` errors that will not pass are put there."""
        logs = []
        for topic, partition in sorted(partitions):
            try:
                logs.append(self._store.partition(topic, partition))
            except UnknownTopicOrPartitionError:
                log.info("%s-%d is gone: its transaction ends without it", topic, partition)
            except (CorruptCheckpointError, StorageError) as error:
                if unusable is None or passes(error):
                    raise
                unusable.append(error)
        return logs

    def durable(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether some partition promises to survive power loss: then the decision must too."""
        return any(each._writing().config.flush_messages == 1 for each in self._logs(partitions, []))

    # --- what nobody knows of ---------------------------------------------------------------

    def dangling(self, known: Iterable[TransactionMetadata]) -> list[Dangling]:
        """Transactions that are open in topics of ours, and in none of `known`, or were begun later."""
        open_ones = {
            (m.producer_id, at): m.producer_epoch for m in known if not m.state.settled for at in m.partitions
        }
        found = []
        for topic, partition in self._store._writer().unstable():
            if not self._store.topics()[topic].ours:
                continue
            try:
                held = markers.open_transactions(self._store.partition(topic, partition))
            except SegstoreError as error:  # nobody can read there either
                log.warning("transactions of %s-%d are not known: %s", topic, partition, error)
                continue
            at = TopicPartition(topic, partition)
            found += [
                Dangling(topic, partition, each.producer_id, each.producer_epoch)
                for each in held
                if each.producer_epoch > open_ones.get((each.producer_id, at), NO_EPOCH)
            ]
        return found

    def newer(self, known: Collection[TransactionMetadata]) -> dict[int, int]:
        """By producer id, epochs that partitions know and `known` does not: a power cut took the end of
        `__transaction_state`.
        """
        ours = {m.producer_id: m.producer_epoch for m in known}
        newer: dict[int, int] = {}
        for topic, partition in self._store._writer().opened() if ours else ():
            try:
                found = markers.producer_epochs(self._store.partition(topic, partition), ours)
            except SegstoreError as error:  # nobody can write there either
                log.warning("producers of %s-%d are not known: %s", topic, partition, error)
                continue
            for each, epoch in found.items():
                if epoch > max(ours[each], newer.get(each, NO_EPOCH)):
                    newer[each] = epoch
        return newer

    def abort_dangling(self, left: Dangling) -> None:
        """End it, so that nobody who reads committed records waits for it for ever. StorageError."""
        logs = self._logs([TopicPartition(left.topic, left.partition)])
        if logs:
            epoch = self._state_log.epoch("")
            markers.end_transaction(logs, left.producer_id, left.producer_epoch, epoch, commit=False)
            log.warning("%s was left open by nobody known: it is aborted", left)
