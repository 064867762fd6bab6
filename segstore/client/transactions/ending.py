"""How a transaction's end reaches the partitions: markers, and offsets that it committed.

On disk: control batches in the partitions, through `storage.markers`.
Threads: any; the caller holds the transactional id's lock.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import NamedTuple

from segstore.client.shared import existing
from segstore.client.structs import TopicPartition
from segstore.client.transactions.metadata import State, TransactionMetadata
from segstore.client.transactions.state_log import TransactionStateLog
from segstore.errors import SegstoreError, UnknownTopicOrPartitionError
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
        nothing. What was deleted meanwhile needs no end. StorageError: nobody sees any of it.
        """
        commit = decided.state is State.PREPARE_COMMIT
        logs = self._logs(decided.partitions)
        if logs:
            epoch = self._state_log.epoch(transactional_id)
            markers.end_transaction(logs, decided.producer_id, decided.producer_epoch, epoch, commit)
        if any(topic == OFFSETS for topic, _ in decided.partitions):
            from segstore.client.groups.offsets import GroupOffsets

            # Offsets that nobody has read yet are read with the markers.
            offsets = existing(self._store, GroupOffsets)
            if offsets is not None:
                offsets.complete(decided.producer_id, commit)

    def _logs(self, partitions: Iterable[TopicPartition]) -> list[PartitionLog]:
        logs = []
        for topic, partition in sorted(partitions):
            try:
                logs.append(self._store.partition(topic, partition))
            except UnknownTopicOrPartitionError:
                log.info("%s-%d is gone: its transaction ends without it", topic, partition)
        return logs

    def durable(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether some partition promises to survive power loss: then the decision must too."""
        return any(each._writing().config.flush_messages == 1 for each in self._logs(partitions))

    # --- what nobody knows of ---------------------------------------------------------------

    def dangling(self, known: Iterable[TransactionMetadata]) -> list[Dangling]:
        """Transactions that are open in topics of ours, and in none of `known`."""
        open_ones = {m.producer_id: m.partitions for m in known if not m.state.settled}
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
                if at not in open_ones.get(each.producer_id, ())
            ]
        return found

    def abort_dangling(self, left: Dangling) -> None:
        """End it, so that nobody who reads committed records waits for it for ever. StorageError."""
        logs = self._logs([TopicPartition(left.topic, left.partition)])
        if logs:
            epoch = self._state_log.epoch("")
            markers.end_transaction(logs, left.producer_id, left.producer_epoch, epoch, commit=False)
            log.warning("%s was left open by nobody known: it is aborted", left)
