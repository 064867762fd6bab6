"""How a transactional id gets from one state to the next: the log first, then the partitions.

On disk: through `entries` the topic `__transaction_state`, through `ending` the markers in the partitions.
Threads: any; the caller holds the entry's lock.
"""

from __future__ import annotations

from segstore.coordinator.shared import shared
from segstore.coordinator.transaction.entries import Entries, Entry, Identity
from segstore.coordinator.transaction.lost import Lost
from segstore.coordinator.transaction.markers import Ending
from segstore.coordinator.transaction.metadata import State, TransactionMetadata
from segstore.coordinator.transaction.producer_ids import ProducerIds
from segstore.coordinator.transaction.upkeep import Upkeep
from segstore.errors import ConcurrentTransactionsError, InvalidTxnStateError
from segstore.records.header import NO_EPOCH, NO_PRODUCER_ID
from segstore.storage.store.store import Store


class Transitions:
    """`upkeep` is told what could not be done, and has it done again."""

    def __init__(self, store: Store, entries: Entries, ending: Ending, lost: Lost, upkeep: Upkeep) -> None:
        self._store, self._clock = store, store._context.clock
        self._entries, self._ending, self._lost, self._upkeep = entries, ending, lost, upkeep

    # --- producers --------------------------------------------------------------------------

    def next_producer(self, entry: Entry, timeout_ms: int, asked: Identity | None = None) -> Identity:
        """Give the id to another producer, in the next epoch. StorageError."""
        now, known = self._clock(), entry.metadata
        if known is None:
            known = TransactionMetadata(self._new_id(), NO_EPOCH, timeout_ms)
        known = self._lost.raised(known, now)
        if known.exhausted:
            fresh = known.rotated(self._new_id(), timeout_ms, now)
        else:
            fresh = known.next_producer(timeout_ms, now)
        self._entries.write(entry, fresh, asked)
        return fresh.producer_id, fresh.producer_epoch

    def raise_epoch(self, entry: Entry) -> None:
        """Let the log know what the partitions do, before they forget it."""
        known = entry.metadata
        raised = None if known is None else self._lost.raised(known, self._clock())  # None: never written
        if raised is not None and raised is not known:
            try:
                self._entries.write(entry, raised)
            except Exception as error:
                self._upkeep.failed(f"the epoch of {entry.transactional_id!r} can't be raised", error)

    def _new_id(self) -> int:
        return shared(self._store, ProducerIds).next()

    # --- ends ---------------------------------------------------------------------------------

    def decide(self, entry: Entry, commit: bool, asked: Identity | None = None) -> None:
        """From here on the outcome of what is ongoing is known. StorageError."""
        known = entry.known
        following = self._new_id() if known.exhausted else NO_PRODUCER_ID
        self._entries.write(entry, known.decided(commit, self._clock(), following), asked)
        self._sync_decision(entry)

    def decide_again(self, entry: Entry, commit: bool) -> None:
        """It was decided, and that may not be durable. InvalidTxnStateError, StorageError."""
        if entry.known.state.commits != commit:
            raise InvalidTxnStateError(
                f"the transaction of {entry.transactional_id!r} is {entry.known.state.name}"
            )
        self._sync_decision(entry)

    def _sync_decision(self, entry: Entry) -> None:
        """No marker of a commit may be durable before the decision is. StorageError."""
        known = entry.known
        if known.state is State.PREPARE_COMMIT and self._ending.durable(known.partitions):
            self._entries.sync(entry)

    def settled(self, entry: Entry) -> None:
        """See that a decided transaction is complete. ConcurrentTransactionsError."""
        if not self.try_complete(entry):
            raise ConcurrentTransactionsError(
                f"the last transaction of {entry.transactional_id!r} is still being ended"
            )

    def try_complete(self, entry: Entry) -> bool:
        """Write what a decided transaction, or one that was lost, still lacks; where that fails it is planned
        again.
        """
        known = entry.metadata
        if known is None:
            return True
        try:
            self._lost.end(known.producer_id)  # first: an end is that of all that is open in a partition
            if known.state.prepared:
                self._sync_decision(entry)  # it may have failed before
                self._ending.write_markers(entry.transactional_id, known)
                self._entries.write(entry, known.completed(self._clock()))
        except Exception as error:
            self._upkeep.failed(f"the transaction of {entry.transactional_id!r} is {known.state.name}", error)
            return False
        return True
