"""`TransactionCoordinator`: which producer may write under a transactional id, and how its transactions end
(Kafka: TransactionCoordinator).

On disk: the topic `__transaction_state` through `state_log`, and the markers in the partitions through
`markers`. The outcome is decided when Prepare is in that log, which is written before the first marker;
Complete is written after the last. What fails in between is tried again, by the store's scheduler and by
the next open.

Threads: any. Each transactional id has a lock, which a producer's appends hold too: no record of a
transaction is written after its end, whoever ends it. Requests of the main thread run in a thread where no
signal handler runs: an interrupt leaves no lock taken, and the producer may ask again.
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

# The coordinator's background work: timeouts, expiry, and retries. Threads: it runs in the store's scheduler,
# and keeps neither the coordinator nor the store alive.

log = Logger("segstore")
FIRST_RETRY, LONGEST_RETRY = 0.1, 30.0  # seconds


class Upkeep:
    """Calls the coordinator from the scheduler; after `failed` it calls `end_abandoned` again, after pauses
    that double.
    """

    def __init__(self, coordinator: TransactionCoordinator, store: Store) -> None:
        self._scheduler = store.context.scheduler
        self._lock = Mutex()
        self._pause, self._planned = FIRST_RETRY, False
        self._coordinator = weakref.ref(coordinator)

    def start(self, config: StoreConfig) -> None:
        """Plan the regular calls: abort transactions that timed out, and forget ids that expired."""
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
        """Log that a step failed which must be done, and plan a retry."""
        log.warning("%s, and could not be completed: %s", what, error)
        with self._lock:
            if self._planned:
                return
            self._scheduler.after(self._pause, self._task(lambda c: self._again(c)))
            self._planned = True  # last: where the line before is interrupted, the next failure plans it
            self._pause = min(self._pause * 2, LONGEST_RETRY)

    def _again(self, coordinator: TransactionCoordinator) -> None:
        with self._lock:
            self._planned = False
        coordinator.end_abandoned()
        with self._lock:
            if not self._planned:
                self._pause = FIRST_RETRY


# --- transitions -------------------------------------------------------------------------------

# How a transactional id gets from one state to the next: first in `__transaction_state`, then in the
# partitions. Threads: any; the caller holds the entry's lock.


class Transitions:
    """Moves entries on; what fails is told to `upkeep`, which has it tried again."""

    def __init__(
        self, store: Store, entries: Entries, ending: MarkerWriter, lost: Lost, upkeep: Upkeep
    ) -> None:
        self._store, self._clock = store, store.context.clock
        self._entries, self._ending, self._lost, self._upkeep = entries, ending, lost, upkeep

    # --- producers --------------------------------------------------------------------------

    def next_producer(
        self, entry: TransactionEntry, timeout_ms: int, asked: Identity | None = None, *, remote: bool
    ) -> Identity:
        """Give the transactional id to another producer, in the next epoch. The producer that does not know
        the present epoch yet, though it is that producer's, gets that one. Raises StorageError.
        """
        now, known = self._clock(), entry.metadata
        if known is None:
            known = TransactionMetadata(self._new_id(), NO_EPOCH, timeout_ms)
        raised = self._lost.raised(known, now)
        if asked is not None and asked == entry.last and raised is known:
            fresh = known.emptied(known.producer_epoch, now)._replace(timeout_ms=timeout_ms)
        elif raised.exhausted:
            fresh = raised.rotated(self._new_id(), timeout_ms, now)
        else:
            fresh = raised.next_producer(timeout_ms, now)
        fresh = fresh._replace(remote=int(remote))
        self._entries.write(entry, fresh, asked)
        return fresh.producer_id, fresh.producer_epoch

    def raise_epoch(self, entry: TransactionEntry) -> None:
        """Write a newer epoch that the partitions know into `__transaction_state`, before the partitions
        forget it.
        """
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

    def decide(self, entry: TransactionEntry, commit: bool) -> None:
        """Decide the outcome of the ongoing transaction, by writing Prepare; where there is none, an abort
        only raises the epoch. Its producer may ask again, whoever decides. Raises StorageError.
        """
        known = entry.known
        following = self._new_id() if known.exhausted else NO_PRODUCER_ID
        theirs = known.producer_id, known.producer_epoch
        self._entries.write(entry, known.decided(commit, self._clock(), following), theirs)
        self._sync_decision(entry)

    def decide_in_epoch(self, entry: TransactionEntry, commit: bool) -> None:
        """Do what `decide` does for a producer that keeps its epoch. Raises StorageError."""
        known = entry.known
        begins = self._ending.begins(known.producer_id, known.partitions)
        self._entries.write(entry, known.decided_in_epoch(commit, self._clock(), begins))
        self._sync_decision(entry)

    def _sync_decision(self, entry: TransactionEntry) -> None:
        """Make the decision of a commit durable before any of its markers can be. Raises StorageError."""
        known = entry.known
        if known.state is TransactionState.PREPARE_COMMIT and self._ending.durable(known.partitions):
            self._entries.sync(entry)

    def ensure_complete(self, entry: TransactionEntry) -> None:
        """Complete a decided transaction. Raises ConcurrentTransactionsError where that is not possible
        now.
        """
        if not self.try_complete(entry):
            raise ConcurrentTransactionsError(
                f"the last transaction of {entry.transactional_id!r} is still being ended"
            )

    def try_complete(self, entry: TransactionEntry, *, synced: bool = False) -> bool:
        """Write the markers and Complete of a decided transaction, and end lost ones; where that fails a
        retry is planned, and False returned. `synced`: the caller has synced the decision,
        if one is to be completed.
        """
        known = entry.metadata
        if known is None:
            return True
        try:
            self._lost.end(known.producer_id)  # first: a marker ends all that the producer has open there
            if known.state.prepared:
                if not synced:  # an earlier sync may have failed
                    self._sync_decision(entry)
                self._ending.write_markers(entry.transactional_id, known)
                self._entries.write(entry, known.completed(self._clock()))
        except Exception as error:
            self._upkeep.failed(f"the transaction of {entry.transactional_id!r} is {known.state.name}", error)
            return False
        return True


# --- abandoned ---------------------------------------------------------------------------------

# Ends transactions that no producer will end: its process is gone, it is too slow, or it can't go on.
# Threads: any; takes one entry's lock at a time.


class Abandoned:
    """Ends abandoned transactions; one that can't be ended now is left to `upkeep`, which calls
    `end_abandoned` again.
    """

    def __init__(self, entries: Entries, transitions: Transitions, lost: Lost, upkeep: Upkeep) -> None:
        self._entries, self._transitions, self._lost, self._upkeep = entries, transitions, lost, upkeep

    def end_all(self) -> None:
        """End what producers in an earlier process left open, and what could not be ended before."""
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
        """Abort transactions that are open for longer than their producer's `transaction_timeout_ms`."""
        for entry in self._entries.all():
            with entry.lock:
                known = entry.metadata
                if known is None or known.state is not TransactionState.ONGOING:
                    continue
                # From here it counts as abandoned, unless its producer ends it first.
                entry.orphan = known.started_ms + known.timeout_ms < now
        self.end_all()

    def abort_open(self) -> None:
        """Abort the open transactions of producers in this process, because they can't go on."""
        for entry in self._entries.all():
            with entry.lock:
                known = entry.metadata
                if known is not None and known.state is TransactionState.ONGOING and not known.remote:
                    entry.orphan = True
        self.end_all()


# --- coordinator ------------------------------------------------------------


class TransactionCoordinator:
    """A store has one. Making it ends the transactions that producers in an earlier process left open; those
    of producers that come over the network go on, as over a restart of a broker.
    """

    def __init__(self, store: Store) -> None:
        """Raises CorruptRecordError, StorageError where `__transaction_state` can't be read."""
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
        """Take the transactional id over: return the producer id, and an epoch that fences all earlier
        producers.

        An open transaction of theirs is aborted. With `expected`, only the last producer may do that
        (KIP-360), and may ask again. `remote`: the producer is in another process, and outlives this one.
        Raises InvalidTxnTimeoutError; ProducerFencedError;
        ConcurrentTransactionsError and StorageError, after which a retry may help.
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
        """Run a block in which records of the transaction may be appended to these partitions:
        `__transaction_state` has them as part of the transaction, and nobody ends it meanwhile.

        Raises ProducerFencedError, TransactionalIdNotFoundError; ConcurrentTransactionsError and
        StorageError, after which a retry may help.
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
        """Make the partitions part of the transaction. Raises what `appending` raises."""
        with self.appending(transactional_id, identity, partitions):
            pass

    @contextlib.contextmanager
    def verifying(self, transactional_id: str, identity: Identity) -> Iterator[frozenset[TopicPartition]]:
        """Run a block with the partitions that are part of the producer's open transaction, none where it has
        none open; nobody ends it meanwhile, so that no record is written behind its marker (KIP-890).

        Raises ProducerFencedError, TransactionalIdNotFoundError, ConcurrentTransactionsError.
        """
        with self._entries.locked(transactional_id) as entry:
            entry.check(identity)
            self._transitions.ensure_complete(entry)
            known = entry.check(identity)
            yield known.partitions if known.state is TransactionState.ONGOING else frozenset()

    def end(self, transactional_id: str, identity: Identity, commit: bool) -> Identity:
        """Commit or abort the open transaction; return the producer id and epoch to go on with.

        On return the outcome is decided. Markers that can't be written now are written later; until then
        the next request gets ConcurrentTransactionsError. A producer may ask again under the epoch that its
        end, or a time-out, has ended. Raises ProducerFencedError; InvalidTxnStateError for a commit where
        nothing is open, and where the other outcome was decided; StorageError, after which the same call may
        help.
        """
        return self._shelter.call(partial(self._end, transactional_id, identity, commit))

    def _end(self, transactional_id: str, identity: Identity, commit: bool) -> Identity:
        with self._entries.locked(transactional_id) as entry:
            if entry.metadata is not None and entry.metadata.state.prepared:
                self._transitions.ensure_complete(entry)
            if not entry.has_ended(identity):
                known = entry.check(identity)
                if commit and known.state is not TransactionState.ONGOING:
                    raise _not_so(entry)
                self._transitions.decide(entry, commit)
            elif entry.known.state.commits != commit:
                raise _not_so(entry)
            self._transitions.try_complete(entry, synced=True)
            after = entry.known
            if after.next_producer_id != NO_PRODUCER_ID:
                return after.next_producer_id, 0
            return after.producer_id, after.producer_epoch

    def has_ended(self, transactional_id: str, identity: Identity) -> bool:
        """Return whether the producer's last transaction is ended, which it may not know: it may ask for the
        same end, and go on. Raises TransactionalIdNotFoundError.
        """
        with self._entries.locked(transactional_id) as entry:
            return entry.has_ended(identity)

    def end_in_epoch(self, transactional_id: str, identity: Identity, commit: bool) -> None:
        """Do what `end` does for a producer that keeps its epoch, as those before KIP-890 do. Raises
        InvalidTxnStateError for an abort too where nothing was open.
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
                raise _not_so(entry)

    def complete(self, transactional_id: str) -> None:
        """Write the markers of a decided transaction, if they are not written yet. Raises
        ConcurrentTransactionsError where that is not possible now.
        """
        if self._entries.may_be_decided(transactional_id):
            self._shelter.call(partial(self._complete, transactional_id))

    def _complete(self, transactional_id: str) -> None:
        with self._entries.locked(transactional_id) as entry:
            self._transitions.ensure_complete(entry)

    def transactions(self) -> dict[str, TransactionMetadata]:
        """Return the state of each transactional id."""
        return {e.transactional_id: e.metadata for e in self._entries.all() if e.metadata is not None}

    # --- what nobody asks for ---------------------------------------------------------------

    def end_abandoned(self) -> None:
        """End what an earlier process left open, and what could not be ended before."""
        self._abandoned.end_all()

    def abort_timed_out(self) -> None:
        """Abort transactions that are open for longer than their producer's `transaction_timeout_ms`."""
        self._abandoned.abort_timed_out(self._clock())

    def expire(self) -> None:
        """Forget transactional ids that were not used for `transactional.id.expiration.ms`."""
        least = self._clock() - self._config.transactional_id_expiration_ms
        for entry in self._entries.all():
            with entry.lock:
                known = entry.metadata
                if known is not None and known.state.idle and known.updated_ms <= least:
                    self._entries.forget(entry, self._clock())

    def close(self) -> None:
        """Abort the open transactions of this process, because their producers can't go on. The next open
        ends what fails here.
        """
        self._shelter.close()
        self._abandoned.abort_open()


def _not_so(entry: TransactionEntry) -> InvalidTxnStateError:
    return InvalidTxnStateError(
        f"the transaction of {entry.transactional_id!r} can't be ended so: it is {entry.known.state.name}"
    )


def _check_last(entry: TransactionEntry, expected: Identity) -> None:
    """Raise ProducerFencedError, also for another producer id, unless that is the id's last producer."""
    try:
        entry.check(expected)
    except InvalidPidMappingError as error:
        raise ProducerFencedError(str(error)) from None
