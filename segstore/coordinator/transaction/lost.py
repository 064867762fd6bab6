"""`Lost`: transactions that are open in a partition, but that `__transaction_state` lost in a power cut.

A power cut may cut the end of `__transaction_state` and of each partition separately. Suppose that a
transaction is open in a partition, and `__transaction_state` has no state of the transaction. Then the
transaction was committed if any record of a commit remains, in `__transaction_state` or as a marker in some
partition. If no record of a commit remains, the transaction is aborted. A producer that keeps its epoch
(KIP-98) has many transactions in one epoch; each of them is identified by its first records.
On disk: reads the partitions; commits or aborts open transactions through `markers`.
Threads: one thread creates the object; any thread may call `end`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from segstore.coordinator.retriable import passes
from segstore.coordinator.structs import TopicPartition
from segstore.coordinator.transaction.markers import MarkerWriter
from segstore.coordinator.transaction.metadata import (
    EPOCH_EACH,
    MAX_EPOCH,
    Begin,
    TransactionMetadata,
    TransactionState,
)
from segstore.coordinator.transaction.state_log import TransactionStateLog
from segstore.errors import SegstoreError
from segstore.logger import Logger
from segstore.records.control import ABORT, COMMIT, Marker
from segstore.records.header import NO_EPOCH
from segstore.storage.log import transaction_markers
from segstore.storage.producers.aborted_transactions import committed
from segstore.storage.store.store import Store

log = Logger("segstore")


class Dangling(NamedTuple):
    """A transaction that is open in a partition, but not in `__transaction_state`."""

    producer_id: int
    producer_epoch: int
    begin: Begin


class Decisions:
    """The outcomes that `__transaction_state` has for transactions of producers that keep their epoch, except
    outcomes that compaction has removed. `outcomes` maps each transaction to True if it was committed, False
    if it was aborted.
    """

    def __init__(self, decided: Iterable[TransactionMetadata] = ()) -> None:
        self.outcomes: dict[Dangling, bool] = {}
        self._last: dict[int, frozenset[Begin] | None] = {}
        for m in decided:
            for begin in m.begins or ():
                self.outcomes[Dangling(m.producer_id, m.producer_epoch, begin)] = m.state.commits
            self._last[m.producer_id] = m.begins

    def is_of(self, m: TransactionMetadata, dangling: Dangling) -> bool:
        """Return whether `dangling`, a transaction in an epoch of `m`, is the transaction whose state `m` has
        (ongoing, PrepareCommit or PrepareAbort). If not, `dangling` is an earlier transaction of the same
        epoch, or a later transaction.
        """
        last = self._last.get(m.producer_id)
        if m.state.prepared and m.client_version < EPOCH_EACH and last is not None:
            return dangling.begin in last
        return dangling not in self.outcomes


class Lost:
    """The lost transactions of a store: those that are open in a partition, but not in `__transaction_state`.
    `newer` maps a producer id to the largest epoch that any partition has seen, if this epoch is above the
    epoch in `__transaction_state`.
    """

    def __init__(
        self,
        store: Store,
        ending: MarkerWriter,
        state_log: TransactionStateLog,
        known: Collection[TransactionMetadata],
    ) -> None:
        """Search all partitions for lost transactions. Raises CorruptRecordError, StorageError."""
        self._store, self._ending, self._state_log = store, ending, state_log
        self._decisions = Decisions()
        self._open = self._dangling(known)
        self.newer = self._newer(known)
        self._committed = self._evidence(known)

    # --- search ---------------------------------------------------------------------------

    def _dangling(self, known: Collection[TransactionMetadata]) -> set[Dangling]:
        """Return the transactions that are open in a partition, but not in `known`. Topics that only a broker
        has written are skipped.
        """
        under_way = {(m.producer_id, at): m for m in known if not m.state.idle for at in m.partitions}
        found: set[Dangling] = set()
        theirs: dict[Dangling, TransactionMetadata] = {}
        for at in map(TopicPartition._make, self._store.writer().unstable()):
            info = self._store.topics()[at.topic]
            if not info.ours:
                continue
            try:
                transactions = transaction_markers.open_transactions(self._store.partition(*at))
            except SegstoreError as error:  # the partition is skipped: its consumers get `error`, too
                if passes(error):
                    raise
                log.warning("transactions of %s-%d are not known: %s", *at, error)
                continue
            for each in transactions:
                m = under_way.get((each.producer_id, at))
                begin = Begin(at, info.topic_id, each.first_offset, each.leader_epoch)
                dangling = Dangling(each.producer_id, each.producer_epoch, begin)
                if m is None or not m.covers(each.producer_epoch):
                    found.add(dangling)
                elif m.state is not TransactionState.ONGOING or m.client_version < EPOCH_EACH:
                    # `dangling` may be an earlier transaction of the same epoch. Only an ongoing transaction
                    # with EPOCH_EACH is alone in its epoch.
                    theirs[dangling] = m
        if found or theirs:
            ids = {each.producer_id for each in (*found, *theirs)}
            self._decisions = Decisions(self._state_log.decided(ids))
        return found | {dangling for dangling, m in theirs.items() if not self._decisions.is_of(m, dangling)}

    def _newer(self, known: Collection[TransactionMetadata]) -> dict[int, int]:
        ours = {m.producer_id: m.producer_epoch for m in known}
        newer: dict[int, int] = {}
        for at in self._store.writer().opened() if ours else ():
            for each, epoch in self._epochs(TopicPartition._make(at), ours).items():
                if epoch > max(ours[each], newer.get(each, NO_EPOCH)):
                    newer[each] = epoch
        return newer

    def _epochs(self, at: TopicPartition, producer_ids: Collection[int]) -> dict[int, int]:
        try:
            return transaction_markers.producer_epochs(self._store.partition(*at), producer_ids)
        except SegstoreError as error:  # the partition is skipped: appends to it raise `error`, too
            if passes(error):
                raise
            log.warning("producers of %s-%d are not known: %s", *at, error)
            return {}

    def _evidence(self, known: Collection[TransactionMetadata]) -> set[tuple[int, int]]:
        """Return (producer id, epoch) of each committed transaction of the producers that have a transaction
        whose outcome may be lost. If no outcome may be lost, no log is searched.
        """
        wanted = {each.producer_id for each in self._open}
        wanted |= {
            m.producer_id
            for m in known
            if m.state is TransactionState.ONGOING and m.producer_id in self.newer
        }
        if not wanted:
            return set()
        found = self._state_log.committed(wanted)
        for at in map(TopicPartition._make, self._store.writer().opened()):
            theirs = self._epochs(at, wanted).keys()
            if theirs:
                found |= committed(self._store.partition(*at), theirs)
        return found

    # --- outcomes -------------------------------------------------------------------------

    def was_committed(self, m: TransactionMetadata) -> bool:
        """Return whether the transaction that is open in `m` was committed before a power cut removed the
        commit from `__transaction_state`.
        """
        return (m.producer_id, m.transaction_epoch) in self._committed

    def has_end(self, m: TransactionMetadata) -> bool:
        """Return whether the transaction that is open in `m` was committed or aborted before a power cut
        removed the commit or abort from `__transaction_state`.
        """
        return m.producer_id in self.newer or self.was_committed(m)

    def raised(self, m: TransactionMetadata, now: int) -> TransactionMetadata:
        """If the id is idle, and a partition has seen a newer epoch, return `m` with this epoch; else return
        `m` itself.
        """
        newer = self.newer.get(m.producer_id, NO_EPOCH)
        return m.emptied(newer, now) if newer > m.producer_epoch and m.state.idle else m

    def end(self, producer_id: int) -> None:
        """Commit or abort the producer's lost transactions, so that readers don't wait for these transactions
        for ever, and no later record joins one of them. If `__transaction_state` has no outcome of a
        transaction, the marker of this transaction has the next epoch. Raises StorageError.
        """
        for dangling in [each for each in self._open if each.producer_id == producer_id]:
            ended = self._decisions.outcomes.get(dangling)
            commit = (
                (dangling.producer_id, dangling.producer_epoch) in self._committed if ended is None else ended
            )
            epoch = min(dangling.producer_epoch + (ended is None), MAX_EPOCH + 1)
            marker = Marker(producer_id, epoch, COMMIT if commit else ABORT, self._state_log.epoch(""))
            self._ending.end([dangling.begin.at], marker, dangling.producer_epoch)
            log.warning("%s was left open: it is %s", dangling, "committed" if commit else "aborted")
            self._open.discard(dangling)

    @property
    def producers(self) -> set[int]:
        """Return the ids of the producers that have a lost transaction."""
        return {each.producer_id for each in list(self._open)}
