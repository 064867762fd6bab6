"""`TransactionCoordinator`: gives producers to transactional ids, and commits and aborts the producers'
transactions (Kafka: TransactionCoordinator).

On disk: the topic `__transaction_state` through `state_log`, and the markers in the partitions through
`markers`. The outcome is decided as soon as the state PrepareCommit or PrepareAbort is in
`__transaction_state`. This state is written before the first marker, and CompleteCommit or CompleteAbort
after the last marker. If a step between these two states fails, the store's scheduler tries the step again,
and so does the next open of the store.

Threads: any. Each transactional id has a lock. A thread that appends a producer's records holds the lock,
too, so that no record is written after the transaction's commit or abort. Requests of the main thread run in
another thread, which runs no signal handler; so an interrupt leaves no lock locked, and the producer may
repeat its request.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Iterator
from functools import partial

from segstore.config import StoreConfig
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import TopicPartition
from segstore.coordinator.transaction.lost import Lost
from segstore.coordinator.transaction.markers import MarkerWriter
from segstore.coordinator.transaction.metadata import TransactionMetadata, TransactionState
from segstore.coordinator.transaction.producer_ids import ProducerIds
from segstore.coordinator.transaction.state_log import (
    Entries,
    Identity,
    TransactionEntry,
    TransactionStateLog,
)
from segstore.errors import (
    ConcurrentTransactionsError,
    InvalidPidMappingError,
    InvalidTxnStateError,
    InvalidTxnTimeoutError,
    ProducerFencedError,
)
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.records.header import NO_EPOCH, NO_PRODUCER_ID
from segstore.storage.store.store import Store
from segstore.threads import Shelter

# --- upkeep ------------------------------------------------------------------------------------

# `Upkeep` runs the coordinator's background work: timeouts, expiry, and retries. Threads: the work runs in
# the store's scheduler. The scheduler has only a weak reference to the coordinator, so that it keeps neither
# the coordinator nor the store alive.

log = Logger("segstore")
FIRST_RETRY, LONGEST_RETRY = 0.1, 30.0  # seconds


class Upkeep:
    """Runs the coordinator's background work in the scheduler. After the failure of a step that must be
    completed, the scheduler calls `end_abandoned` after a pause; each failure in a row doubles the pause.
    """

    def __init__(self, coordinator: TransactionCoordinator, store: Store) -> None:
        self._scheduler = store.context.scheduler
        self._lock = Mutex()
        self._pause, self._planned = FIRST_RETRY, False
        self._coordinator = weakref.ref(coordinator)

    def start(self, config: StoreConfig) -> None:
        """Schedule the regular work: the abort of transactions that timed out, and the removal of expired
        ids.
        """
        timeouts = config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        expiry = config.transaction_remove_expired_transaction_cleanup_interval_ms
        self._scheduler.every(timeouts / 1000, self._task(lambda c: c.abort_timed_out()))
        self._scheduler.every(expiry / 1000, self._task(lambda c: c.expire()))

    def _task(self, do: Callable[[TransactionCoordinator], None]) -> Callable[[], None]:
        ref = self._coordinator

        def run() -> None:
            coordinator = ref()
            if coordinator is not None:
                do(coordinator)

        return run

    def failed(self, what: str, error: Exception) -> None:
        """Log the failure of a step that must be completed, and plan a retry."""
        log.warning("%s, and could not be completed: %s", what, error)
        with self._lock:
            if self._planned:
                return
            self._scheduler.after(self._pause, self._task(lambda c: self._again(c)))
            # `_planned` is set last: if an interrupt stops `after`, the next failure plans the retry.
            self._planned = True
            self._pause = min(self._pause * 2, LONGEST_RETRY)

    def _again(self, coordinator: TransactionCoordinator) -> None:
        with self._lock:
            self._planned = False
        coordinator.end_abandoned()
        with self._lock:
            if not self._planned:
                self._pause = FIRST_RETRY


# --- transitions -------------------------------------------------------------------------------

# `Transitions` changes the states of transactional ids, first in `__transaction_state`, then in partitions.
# Threads: any; the caller holds the entry's lock.


class Transitions:
    """Changes the states of entries, each of which stands for one transactional id. After a failure `upkeep`
    plans a retry.
    """

    def __init__(
        self, store: Store, entries: Entries, ending: MarkerWriter, lost: Lost, upkeep: Upkeep
    ) -> None:
        self._store, self._clock = store, store.context.clock
        self._entries, self._ending, self._lost, self._upkeep = entries, ending, lost, upkeep

    # --- producers --------------------------------------------------------------------------

    def next_producer(
        self, entry: TransactionEntry, timeout_ms: int, requester: Identity | None = None, *, remote: bool
    ) -> Identity:
        """Set the next epoch for a new producer of the transactional id; return (producer id, epoch). If
        `requester` is the entry's `last` identity, the producer repeats a request whose answer was lost:
        return the current epoch. If no epoch is left, the producer gets a new producer id. Raises
        StorageError.
        """
        now, known = self._clock(), entry.metadata
        if known is None:
            known = TransactionMetadata(self._new_id(), NO_EPOCH, timeout_ms)
        raised = self._lost.raised(known, now)
        if requester is not None and requester == entry.last and raised is known:
            fresh = known.emptied(known.producer_epoch, now)._replace(timeout_ms=timeout_ms)
        elif raised.exhausted:
            fresh = raised.rotated(self._new_id(), timeout_ms, now)
        else:
            fresh = raised.next_producer(timeout_ms, now)
        fresh = fresh._replace(remote=int(remote))
        self._entries.write(entry, fresh, requester)
        return fresh.producer_id, fresh.producer_epoch

    def raise_epoch(self, entry: TransactionEntry) -> None:
        """If a partition has seen a newer epoch of the producer, write this epoch to `__transaction_state`,
        before this partition's producer state expires.
        """
        known = entry.metadata
        # `known` is None if the id has no record.
        raised = None if known is None else self._lost.raised(known, self._clock())
        if raised is not None and raised is not known:
            try:
                self._entries.write(entry, raised)
            except Exception as error:
                self._upkeep.failed(f"the epoch of {entry.transactional_id!r} can't be raised", error)

    def _new_id(self) -> int:
        return shared(self._store, ProducerIds).next()

    # --- commits and aborts -------------------------------------------------------------------

    def decide(self, entry: TransactionEntry, commit: bool) -> None:
        """Decide the outcome of the ongoing transaction by writing PrepareCommit or PrepareAbort. If no
        transaction is ongoing, an abort only raises the epoch. The producer may still repeat its request
        under the old epoch. Raises StorageError.
        """
        known = entry.known
        following = self._new_id() if known.exhausted else NO_PRODUCER_ID
        theirs = known.producer_id, known.producer_epoch
        self._entries.write(entry, known.decided(commit, self._clock(), following), theirs)
        self._sync_decision(entry)

    def decide_in_epoch(self, entry: TransactionEntry, commit: bool) -> None:
        """Decide the outcome of the ongoing transaction, and keep the producer's epoch (KIP-98). Raises
        StorageError.
        """
        known = entry.known
        begins = self._ending.begins(known.producer_id, known.partitions)
        self._entries.write(entry, known.decided_in_epoch(commit, self._clock(), begins))
        self._sync_decision(entry)

    def _sync_decision(self, entry: TransactionEntry) -> None:
        """If the state is PrepareCommit, and a partition syncs its marker at once, sync the state: no marker
        may be durable before the state is. Raises StorageError.
        """
        known = entry.known
        if known.state is TransactionState.PREPARE_COMMIT and self._ending.durable(known.partitions):
            self._entries.sync(entry)

    def ensure_complete(self, entry: TransactionEntry) -> None:
        """Complete a transaction in PrepareCommit or PrepareAbort. Raises ConcurrentTransactionsError if the
        transaction can't be completed now.
        """
        if not self.try_complete(entry):
            raise ConcurrentTransactionsError(
                f"the last transaction of {entry.transactional_id!r} is still being ended"
            )

    def try_complete(self, entry: TransactionEntry, *, synced: bool = False) -> bool:
        """Write the markers of the producer's lost transactions (class `Lost`). If the entry's transaction is
        in PrepareCommit or PrepareAbort, write its markers, then CompleteCommit or CompleteAbort. Return
        True. If a step fails, plan a retry, and return False. `synced` says that the caller has synced the
        state.
        """
        known = entry.metadata
        if known is None:
            return True
        try:
            # The markers of lost transactions are written first. The markers of this transaction would end
            # the lost transactions, too, perhaps with the wrong outcome.
            self._lost.end(known.producer_id)
            if known.state.prepared:
                if not synced:  # an earlier attempt to sync may have failed
                    self._sync_decision(entry)
                self._ending.write_markers(entry.transactional_id, known)
                self._entries.write(entry, known.completed(self._clock()))
        except Exception as error:
            self._upkeep.failed(f"the transaction of {entry.transactional_id!r} is {known.state.name}", error)
            return False
        return True


# --- abandoned ---------------------------------------------------------------------------------

# `Abandoned` aborts transactions that are open for too long, or whose producer's process has ended, and
# completes transactions in PrepareCommit or PrepareAbort. Threads: any; one entry's lock is held at a time.


class Abandoned:
    """Aborts transactions that no producer will commit or abort, and completes transactions in PrepareCommit
    or PrepareAbort. After a failure `upkeep` calls `end_abandoned` again.
    """

    def __init__(self, entries: Entries, transitions: Transitions, lost: Lost, upkeep: Upkeep) -> None:
        self._entries, self._transitions, self._lost, self._upkeep = entries, transitions, lost, upkeep

    def end_all(self) -> None:
        """End the ongoing transaction of each entry whose `orphan` is True: if `Lost` finds that the
        transaction was committed, commit it; else abort it. Complete transactions in PrepareCommit or
        PrepareAbort. Commit or abort lost transactions (class `Lost`).
        """
        for entry in self._entries.all():
            with entry.lock:
                known = entry.metadata
                try:
                    if known is not None and known.state is TransactionState.ONGOING and entry.orphan:
                        self._transitions.decide(entry, self._lost.was_committed(known))
                except Exception as error:
                    self._upkeep.failed(f"{entry.transactional_id!r} can't be ended", error)
                    continue
                if self._transitions.try_complete(entry):
                    self._transitions.raise_epoch(entry)
        for producer_id in self._lost.producers:
            try:
                self._lost.end(producer_id)
            except Exception as error:
                self._upkeep.failed(f"transactions of producer {producer_id} can't be ended", error)

    def abort_timed_out(self, now: int) -> None:
        """Abort transactions that are open for longer than the producer's `transaction_timeout_ms`."""
        for entry in self._entries.all():
            with entry.lock:
                known = entry.metadata
                if known is None or known.state is not TransactionState.ONGOING:
                    continue
                # `end_all` aborts the transaction of an entry whose `orphan` is True. If the producer commits
                # or aborts first, `orphan` becomes False.
                entry.orphan = known.started_ms + known.timeout_ms < now
        self.end_all()

    def abort_open(self) -> None:
        """Abort the open transactions of producers in this process, because the store is being closed."""
        for entry in self._entries.all():
            with entry.lock:
                known = entry.metadata
                if known is not None and known.state is TransactionState.ONGOING and not known.remote:
                    entry.orphan = True
        self.end_all()


# --- coordinator ------------------------------------------------------------


class TransactionCoordinator:
    """The transaction coordinator of a store, which has only one. The constructor aborts the transactions
    that producers in an earlier process left open. Transactions of remote producers stay open, as they do
    when a broker restarts.
    """

    def __init__(self, store: Store) -> None:
        """Load the states, and start the background work (`Upkeep`). Raises CorruptRecordError or
        StorageError if `__transaction_state` can't be read.
        """
        self._clock, self._config = store.context.clock, store.writer().config
        self._shelter = Shelter("segstore-transactions")
        log = TransactionStateLog(store)
        ending = MarkerWriter(store, log)
        loaded = log.load()
        self._entries = Entries(log, loaded)
        lost = Lost(store, ending, log, loaded.values())
        for entry in self._entries.all():
            entry.orphan = entry.orphan or lost.has_end(entry.known)
        upkeep = Upkeep(self, store)
        self._transitions = Transitions(store, self._entries, ending, lost, upkeep)
        self._abandoned = Abandoned(self._entries, self._transitions, lost, upkeep)
        upkeep.start(self._config)
        self.end_abandoned()

    # --- a producer's requests ----------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: Identity | None = None,
        *,
        remote: bool = False,
    ) -> Identity:
        """Return a producer id and an epoch for a new producer of the transactional id; the epoch fences all
        earlier producers.

        An open transaction of an earlier producer is aborted. If `expected` is given, it must be the identity
        of the last producer (KIP-360); this producer may repeat the request. `remote` says that the producer
        is in another process, and may live longer than this process. Raises InvalidTxnTimeoutError,
        ProducerFencedError, ConcurrentTransactionsError, StorageError. After ConcurrentTransactionsError or
        StorageError a retry may help.
        """
        longest = self._config.transaction_max_timeout_ms
        if not 0 < timeout_ms <= longest:
            raise InvalidTxnTimeoutError(
                f"transaction_timeout_ms={timeout_ms}: must be from 1 to transaction.max.timeout.ms={longest}"
            )
        return self._shelter.call(partial(self._init, transactional_id, timeout_ms, expected, remote))

    def _init(
        self, transactional_id: str, timeout_ms: int, expected: Identity | None, remote: bool
    ) -> Identity:
        with self._entries.locked(transactional_id, make=True) as entry:
            self._transitions.ensure_complete(entry)
            if expected is not None and entry.metadata is not None and expected != entry.last:
                _check_last(entry, expected)
            if entry.metadata is not None and entry.metadata.state is TransactionState.ONGOING:
                self._transitions.decide(entry, commit=False)
                self._transitions.ensure_complete(entry)
            return self._transitions.next_producer(entry, timeout_ms, expected, remote=remote)

    @contextlib.contextmanager
    def appending(
        self, transactional_id: str, identity: Identity, partitions: Collection[TopicPartition]
    ) -> Iterator[None]:
        """Run a block that may append records of the transaction to these partitions. The partitions are
        first added to the transaction in `__transaction_state`. The transaction can't be committed or aborted
        during the block.

        Raises ProducerFencedError, InvalidPidMappingError, TransactionalIdNotFoundError,
        ConcurrentTransactionsError, StorageError. After ConcurrentTransactionsError or StorageError a retry
        may help.
        """
        with self._entries.locked(transactional_id) as entry:
            self._transitions.ensure_complete(entry)
            known = entry.check(identity)
            if known.state is not TransactionState.ONGOING or not known.partitions.issuperset(partitions):
                self._entries.write(entry, known.with_partitions(partitions, self._clock()))
            yield

    def add_partitions(
        self, transactional_id: str, identity: Identity, partitions: Collection[TopicPartition]
    ) -> None:
        """Add partitions to the transaction. Raises the errors of `appending`."""
        with self.appending(transactional_id, identity, partitions):
            pass

    @contextlib.contextmanager
    def verifying(self, transactional_id: str, identity: Identity) -> Iterator[frozenset[TopicPartition]]:
        """Run a block with the partitions of the producer's open transaction, or with an empty set if no
        transaction is open. The transaction can't be committed or aborted during the block, so no record is
        written after the marker (KIP-890).

        Raises ProducerFencedError, InvalidPidMappingError, TransactionalIdNotFoundError,
        ConcurrentTransactionsError.
        """
        with self._entries.locked(transactional_id) as entry:
            entry.check(identity)
            self._transitions.ensure_complete(entry)
            known = entry.check(identity)
            yield known.partitions if known.state is TransactionState.ONGOING else frozenset()

    def end(self, transactional_id: str, identity: Identity, commit: bool) -> Identity:
        """Commit or abort the open transaction; return (producer id, epoch) with which the producer
        continues.

        On return the outcome is final. Markers that can't be written now are written later; until then the
        producer's next request raises ConcurrentTransactionsError. A commit or abort raises the producer's
        epoch, also an abort after a timeout. The producer may still repeat the request under its old epoch.

        Raises ProducerFencedError, InvalidPidMappingError, TransactionalIdNotFoundError. Raises
        InvalidTxnStateError for a commit without an open transaction, or if the transaction has the other
        outcome. Raises StorageError, after which the call may be repeated.
        """
        return self._shelter.call(partial(self._end, transactional_id, identity, commit))

    def _end(self, transactional_id: str, identity: Identity, commit: bool) -> Identity:
        with self._entries.locked(transactional_id) as entry:
            if entry.metadata is not None and entry.metadata.state.prepared:
                self._transitions.ensure_complete(entry)
            if not entry.has_ended(identity):
                known = entry.check(identity)
                if commit and known.state is not TransactionState.ONGOING:
                    raise _wrong_state(entry)
                self._transitions.decide(entry, commit)
            elif entry.known.state.commits != commit:
                raise _wrong_state(entry)
            self._transitions.try_complete(entry, synced=True)
            after = entry.known
            if after.next_producer_id != NO_PRODUCER_ID:
                return after.next_producer_id, 0
            return after.producer_id, after.producer_epoch

    def has_ended(self, transactional_id: str, identity: Identity) -> bool:
        """Return whether the last transaction of this id that was committed or aborted was a transaction of
        the producer `identity`. If this producer missed the answer to its commit or abort, it may repeat the
        request. Raises TransactionalIdNotFoundError.
        """
        with self._entries.locked(transactional_id) as entry:
            return entry.has_ended(identity)

    def end_in_epoch(self, transactional_id: str, identity: Identity, commit: bool) -> None:
        """Commit or abort the open transaction of a producer that keeps its epoch, as producers did before
        KIP-890. Raises the errors of `end`. Also raises InvalidTxnStateError for an abort without an open
        transaction.
        """
        self._shelter.call(partial(self._end_in_epoch, transactional_id, identity, commit))

    def _end_in_epoch(self, transactional_id: str, identity: Identity, commit: bool) -> None:
        with self._entries.locked(transactional_id) as entry:
            known = entry.check(identity)
            if known.state.prepared:
                self._transitions.ensure_complete(entry)
                known = entry.check(identity)
            if known.state is TransactionState.ONGOING:
                self._transitions.decide_in_epoch(entry, commit)
                self._transitions.try_complete(entry, synced=True)
            elif known.state is TransactionState.EMPTY or known.state.commits != commit:
                raise _wrong_state(entry)

    def complete(self, transactional_id: str) -> None:
        """Write the missing markers of a transaction in PrepareCommit or PrepareAbort. Raises
        ConcurrentTransactionsError if the markers can't be written now.
        """
        if self._entries.may_be_decided(transactional_id):
            self._shelter.call(partial(self._complete, transactional_id))

    def _complete(self, transactional_id: str) -> None:
        with self._entries.locked(transactional_id) as entry:
            self._transitions.ensure_complete(entry)

    def transactions(self) -> dict[str, TransactionMetadata]:
        """Return the state of each transactional id."""
        return {e.transactional_id: e.metadata for e in self._entries.all() if e.metadata is not None}

    # --- background work -------------------------------------------------------------------

    def end_abandoned(self) -> None:
        """Abort transactions that an earlier process left open, and complete transactions in PrepareCommit or
        PrepareAbort.
        """
        self._abandoned.end_all()

    def abort_timed_out(self) -> None:
        """Abort transactions that are open for longer than the producer's `transaction_timeout_ms`."""
        self._abandoned.abort_timed_out(self._clock())

    def expire(self) -> None:
        """Remove transactional ids that were not used for `transactional.id.expiration.ms`."""
        least = self._clock() - self._config.transactional_id_expiration_ms
        for entry in self._entries.all():
            with entry.lock:
                known = entry.metadata
                if known is not None and known.state.idle and known.updated_ms <= least:
                    self._entries.forget(entry, self._clock())

    def close(self) -> None:
        """Abort the open transactions of this process's producers, because these producers can't continue. If
        an abort fails, the next open of the store aborts the transaction.
        """
        self._shelter.close()
        self._abandoned.abort_open()


def _wrong_state(entry: TransactionEntry) -> InvalidTxnStateError:
    return InvalidTxnStateError(
        f"the transaction of {entry.transactional_id!r} can't be ended so: it is {entry.known.state.name}"
    )


def _check_last(entry: TransactionEntry, expected: Identity) -> None:
    """Raise ProducerFencedError unless `expected` is the id's last producer."""
    try:
        entry.check(expected)
    except InvalidPidMappingError as error:
        raise ProducerFencedError(str(error)) from None
