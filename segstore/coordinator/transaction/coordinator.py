"""Who may write under a transactional id, and how its transactions end (Kafka: TransactionCoordinator).

On disk: through `entries` the topic `__transaction_state`, through `ending` the markers in the partitions.
The outcome is decided when Prepare is in that log: it is written before the first marker, Complete after the
last. What fails in between is tried again, by the store's scheduler and by the next open.

Threads: any. One lock per transactional id, which a producer's appends hold too: no record of a transaction
is written after its end, whoever ends it. What the main thread asks for is done in a thread where no signal
handler runs: an interrupt that comes meanwhile keeps no lock taken, and the producer may ask again.
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
from segstore.coordinator.transaction.markers import Ending
from segstore.coordinator.transaction.metadata import State, TransactionMetadata
from segstore.coordinator.transaction.producer_ids import ProducerIds
from segstore.coordinator.transaction.state_log import Entries, Entry, Identity, TransactionStateLog
from segstore.errors import ConcurrentTransactionsError, InvalidTxnStateError, InvalidTxnTimeoutError
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.records.header import NO_EPOCH, NO_PRODUCER_ID
from segstore.storage.store.store import Store
from segstore.threads import Shelter

# --- upkeep ------------------------------------------------------------------------------------

# The coordinator's background work: timeouts, expiry, and what failed and is tried again. Nothing on disk.
#
# Threads: runs in the store's scheduler; keeps neither the coordinator nor the store alive.

log = Logger("segstore")
FIRST_RETRY, LONGEST_RETRY = 0.1, 30.0  # seconds


class Upkeep:
    """Calls the coordinator; `failed` has it `settle` again, after pauses that double."""

    def __init__(self, coordinator: TransactionCoordinator, store: Store) -> None:
        self._scheduler = store._context.scheduler
        self._lock = Mutex()
        self._pause, self._planned = FIRST_RETRY, False
        self._coordinator = weakref.ref(coordinator)

    def start(self, config: StoreConfig) -> None:
        """Look for what takes too long and for what has expired, every so often."""
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
        """Something that must be done could not be done now."""
        log.warning("%s, and could not be completed: %s", what, error)
        with self._lock:
            if self._planned:
                return
            self._scheduler.after(self._pause, self._task(lambda c: self._again(c)))
            self._planned = True  # last: where that was interrupted, the next failure plans it
            self._pause = min(self._pause * 2, LONGEST_RETRY)

    def _again(self, coordinator: TransactionCoordinator) -> None:
        with self._lock:
            self._planned = False
        coordinator.settle()
        with self._lock:
            if not self._planned:
                self._pause = FIRST_RETRY


# --- transitions -------------------------------------------------------------------------------

# How a transactional id gets from one state to the next: the log first, then the partitions.
#
# On disk: through `entries` the topic `__transaction_state`, through `ending` the markers in the partitions.
# Threads: any; the caller holds the entry's lock.


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


# --- abandoned ---------------------------------------------------------------------------------

# Ends what nobody else will: transactions whose producer is gone, is too slow, or can't go on.
#
# Nothing on disk of its own: `transitions` and `lost` write the ends. Threads: any; takes one entry's lock
# at a time.


class Abandoned:
    """What can't be ended now is left to `upkeep`, which asks for `settle` again."""

    def __init__(self, entries: Entries, transitions: Transitions, lost: Lost, upkeep: Upkeep) -> None:
        self._entries, self._transitions, self._lost, self._upkeep = entries, transitions, lost, upkeep

    def settle(self) -> None:
        """End what a process that is gone left open, and what could not be ended yet."""
        for entry in self._entries.all():
            with entry.lock:
                known = entry.metadata
                try:
                    if known is not None and known.state is State.ONGOING and entry.orphan:
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
                if known is None or known.state is not State.ONGOING:
                    continue
                # As if its producer were gone; unless that ends it first, after all.
                entry.orphan = known.started_ms + known.timeout_ms < now
        self.settle()

    def abort_open(self) -> None:
        """Abort all that is open: its producers can't go on."""
        for entry in self._entries.all():
            with entry.lock:
                known = entry.metadata
                if known is not None and known.state is State.ONGOING:
                    entry.orphan = True
        self.settle()


# --- coordinator ------------------------------------------------------------


class TransactionCoordinator:
    """One of these a store. Making it ends what an earlier process left open."""

    def __init__(self, store: Store) -> None:
        """CorruptRecordError, StorageError: `__transaction_state` can't be read."""
        self._clock, self._config = store._context.clock, store._writer().config
        self._shelter = Shelter("segstore-transactions")
        log = TransactionStateLog(store)
        ending = Ending(store, log)
        loaded = log.load()
        self._entries = Entries(log, loaded)
        lost = Lost(store, ending, log, loaded.values())
        upkeep = Upkeep(self, store)
        self._transitions = Transitions(store, self._entries, ending, lost, upkeep)
        self._abandoned = Abandoned(self._entries, self._transitions, lost, upkeep)
        upkeep.start(self._config)
        self.settle()

    # --- a producer's requests ----------------------------------------------------------

    def init_producer_id(self, transactional_id: str, timeout_ms: int) -> Identity:
        """Take the id over: the producer id, and an epoch that fences all who had it before.

        What they left open is aborted. InvalidTxnTimeoutError; ConcurrentTransactionsError, StorageError:
        asking again may help.
        """
        longest = self._config.transaction_max_timeout_ms
        if not 0 < timeout_ms <= longest:
            raise InvalidTxnTimeoutError(
                f"transaction_timeout_ms={timeout_ms}: must be from 1 to transaction.max.timeout.ms={longest}"
            )
        return self._shelter.call(partial(self._init, transactional_id, timeout_ms))

    def _init(self, transactional_id: str, timeout_ms: int) -> Identity:
        with self._entries.locked(transactional_id, make=True) as entry:
            if entry.metadata is not None and entry.metadata.state is State.ONGOING:
                self._transitions.decide(entry, commit=False)
            self._transitions.settled(entry)
            return self._transitions.next_producer(entry, timeout_ms)

    @contextlib.contextmanager
    def appending(
        self, transactional_id: str, identity: Identity, partitions: Collection[TopicPartition]
    ) -> Iterator[None]:
        """Within, records of the transaction may be appended to these partitions: the log has them as part of
        it, and nobody ends it meanwhile.

        ProducerFencedError, TransactionalIdNotFoundError; ConcurrentTransactionsError, StorageError: asking
        again may help.
        """
        with self._entries.locked(transactional_id) as entry:
            self._transitions.settled(entry)
            known = entry.check(identity)
            if known.state is not State.ONGOING or not known.partitions.issuperset(partitions):
                self._entries.write(entry, known.with_partitions(partitions, self._clock()))
            yield

    def add_partitions(
        self, transactional_id: str, identity: Identity, partitions: Collection[TopicPartition]
    ) -> None:
        """Make the partitions part of the transaction; errors as `appending`."""
        with self.appending(transactional_id, identity, partitions):
            pass

    def end(self, transactional_id: str, identity: Identity, commit: bool) -> Identity:
        """Commit or abort what is open: the producer id and epoch to go on with.

        Once it returns the outcome is decided; markers that can't be written now are later, until then the
        next transaction gets ConcurrentTransactionsError. ProducerFencedError; InvalidTxnStateError where the
        other outcome was decided; StorageError: asking for the same again may help.
        """
        return self._shelter.call(partial(self._end, transactional_id, identity, commit))

    def _end(self, transactional_id: str, identity: Identity, commit: bool) -> Identity:
        with self._entries.locked(transactional_id) as entry:
            if entry.ending == identity:
                self._transitions.decide_again(entry, commit)
            elif (known := entry.check(identity)).state is State.ONGOING:
                self._transitions.decide(entry, commit, identity)
            elif not commit and known.state.settled:
                # Nothing was written: only the epoch goes on, so that sequences may begin anew.
                return self._transitions.next_producer(entry, known.timeout_ms, identity)
            self._transitions.try_complete(entry)
            after = entry.known
            if after.next_producer_id != NO_PRODUCER_ID:
                return after.next_producer_id, 0
            return after.producer_id, after.producer_epoch

    def complete(self, transactional_id: str) -> None:
        """See that markers are written where an end was decided. ConcurrentTransactionsError: not yet."""
        self._shelter.call(partial(self._complete, transactional_id))

    def _complete(self, transactional_id: str) -> None:
        with self._entries.locked(transactional_id) as entry:
            self._transitions.settled(entry)

    def transactions(self) -> dict[str, TransactionMetadata]:
        """What is known, by transactional id."""
        return {e.transactional_id: e.metadata for e in self._entries.all() if e.metadata is not None}

    # --- what nobody asks for ---------------------------------------------------------------

    def settle(self) -> None:
        """End what a process that is gone left open, and what could not be ended yet."""
        self._abandoned.settle()

    def abort_timed_out(self) -> None:
        """Abort transactions that are open for longer than their producer's `transaction_timeout_ms`."""
        self._abandoned.abort_timed_out(self._clock())

    def expire(self) -> None:
        """Forget ids that were not used for `transactional.id.expiration.ms`."""
        least = self._clock() - self._config.transactional_id_expiration_ms
        for entry in self._entries.all():
            with entry.lock:
                known = entry.metadata
                if known is not None and known.state.settled and known.updated_ms <= least:
                    self._entries.forget(entry, self._clock())

    def close(self) -> None:
        """Abort what is open, as its producers can't go on. What fails is left to the next open."""
        self._shelter.close()
        self._abandoned.abort_open()
