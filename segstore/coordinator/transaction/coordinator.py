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
from collections.abc import Collection, Iterator
from functools import partial

from segstore.coordinator.structs import TopicPartition
from segstore.coordinator.transaction.abandoned import Abandoned
from segstore.coordinator.transaction.entries import Entries, Identity
from segstore.coordinator.transaction.lost import Lost
from segstore.coordinator.transaction.markers import Ending
from segstore.coordinator.transaction.metadata import State, TransactionMetadata
from segstore.coordinator.transaction.state_log import TransactionStateLog
from segstore.coordinator.transaction.transitions import Transitions
from segstore.coordinator.transaction.upkeep import Upkeep
from segstore.errors import InvalidTxnTimeoutError
from segstore.records.header import NO_PRODUCER_ID
from segstore.storage.store.store import Store
from segstore.threads import Shelter


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
