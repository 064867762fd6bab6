"""Who may write under a transactional id, and how its transactions end (Kafka: TransactionCoordinator).

On disk: through `state_log` the topic `__transaction_state`, through `ending` the markers in the partitions.
The outcome is decided when Prepare is in that log: it is written before the first marker, Complete after the
last. What fails in between is tried again, by the store's scheduler and by the next open.

Threads: any. One lock per transactional id, which a producer's appends hold too: no record of a transaction
is written after its end, whoever ends it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator

from segstore.client.shared import shared
from segstore.client.structs import TopicPartition
from segstore.client.transactions.ending import Ending
from segstore.client.transactions.lost import Lost
from segstore.client.transactions.metadata import State, TransactionMetadata
from segstore.client.transactions.producer_ids import ProducerIds
from segstore.client.transactions.state_log import TransactionStateLog
from segstore.client.transactions.upkeep import Upkeep
from segstore.errors import (
    ConcurrentTransactionsError,
    InvalidTxnStateError,
    InvalidTxnTimeoutError,
    ProducerFencedError,
    TransactionalIdNotFoundError,
)
from segstore.records.header import NO_EPOCH, NO_PRODUCER_ID
from segstore.storage.store import Store

Identity = tuple[int, int]
"""Producer id and epoch."""


class Entry:
    """One transactional id; `metadata` is what its log says, None before the first record of it.

    `orphan`: what is ongoing is to be aborted. It was loaded, so that whoever began it is gone, or it is open
    for too long. `ending`: who asked for the last end, and may ask again, though its epoch is over.
    """

    __slots__ = ("ending", "lock", "metadata", "orphan", "transactional_id")

    def __init__(self, transactional_id: str, metadata: TransactionMetadata | None) -> None:
        self.transactional_id, self.metadata = transactional_id, metadata
        self.orphan = metadata is not None
        self.ending: Identity | None = None
        self.lock = threading.Lock()


class TransactionCoordinator:
    """One of these a store. Making it ends what an earlier process left open."""

    def __init__(self, store: Store) -> None:
        """CorruptRecordError, StorageError: `__transaction_state` can't be read."""
        self._store, self._clock = store, store._context.clock
        self._config = store._writer().config
        self._log = TransactionStateLog(store)
        self._ending = Ending(store, self._log)
        self._lock = threading.Lock()
        loaded = self._log.load()
        self._entries = {name: Entry(name, metadata) for name, metadata in loaded.items()}
        self._lost = Lost(store, self._ending, self._log, loaded.values())
        self._upkeep = Upkeep(self, store, self._config)
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
        with self._locked(transactional_id, make=True) as entry:
            if entry.metadata is not None and entry.metadata.state is State.ONGOING:
                self._decide(entry, commit=False)
            self._settled(entry)
            return self._next_producer(entry, timeout_ms)

    def _next_producer(self, entry: Entry, timeout_ms: int, asked: Identity | None = None) -> Identity:
        now, known = self._clock(), entry.metadata
        if known is None:
            known = TransactionMetadata(self._new_id(), NO_EPOCH, timeout_ms)
        known = self._lost.raised(known, now)
        if known.exhausted:
            fresh = known.rotated(self._new_id(), timeout_ms, now)
        else:
            fresh = known.next_producer(timeout_ms, now)
        self._write(entry, fresh, asked)
        return fresh.producer_id, fresh.producer_epoch

    @contextlib.contextmanager
    def appending(
        self, transactional_id: str, identity: Identity, partitions: Collection[TopicPartition]
    ) -> Iterator[None]:
        """Within, records of the transaction may be appended to these partitions: the log has them as part of
        it, and nobody ends it meanwhile.

        ProducerFencedError, TransactionalIdNotFoundError; ConcurrentTransactionsError, StorageError: asking
        again may help.
        """
        with self._locked(transactional_id) as entry:
            known = self._settled(entry)
            _check(entry, identity)
            if known.state is not State.ONGOING or not known.partitions.issuperset(partitions):
                self._write(entry, known.with_partitions(partitions, self._clock()))
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
        with self._locked(transactional_id) as entry:
            if entry.ending == identity:
                self._ask_again(entry, commit)
            elif (known := _check(entry, identity)).state is State.ONGOING:
                self._decide(entry, commit, identity)
            elif not commit and known.state.settled:
                # Nothing was written: only the epoch goes on, so that sequences may begin anew.
                return self._next_producer(entry, known.timeout_ms, identity)
            self._try_complete(entry)
            after = entry.metadata
            assert after is not None
            if after.next_producer_id != NO_PRODUCER_ID:
                return after.next_producer_id, 0
            return after.producer_id, after.producer_epoch

    def _ask_again(self, entry: Entry, commit: bool) -> None:
        """It was decided, and that may not be durable."""
        known = entry.metadata
        assert known is not None
        if known.state.commits != commit:
            raise InvalidTxnStateError(f"the transaction of {entry.transactional_id!r} is {known.state.name}")
        self._sync_decision(entry)

    def complete(self, transactional_id: str) -> None:
        """See that markers are written where an end was decided. ConcurrentTransactionsError: not yet."""
        with self._locked(transactional_id) as entry:
            self._settled(entry)

    def transactions(self) -> dict[str, TransactionMetadata]:
        """What is known, by transactional id."""
        with self._lock:
            entries = list(self._entries.values())
        return {e.transactional_id: e.metadata for e in entries if e.metadata is not None}

    # --- steps, with the entry's lock held ------------------------------------------------

    @contextlib.contextmanager
    def _locked(self, transactional_id: str, make: bool = False) -> Iterator[Entry]:
        while True:
            with self._lock:
                entry = self._entries.get(transactional_id)
                if entry is None:
                    if not make:
                        raise TransactionalIdNotFoundError(
                            f"there is no transactional_id {transactional_id!r}: it may have expired"
                        )
                    entry = self._entries[transactional_id] = Entry(transactional_id, None)
            with entry.lock:
                if self._entries.get(transactional_id) is entry:  # it may have expired while we waited
                    yield entry
                    return

    def _new_id(self) -> int:
        return shared(self._store, ProducerIds).next()

    def _write(self, entry: Entry, metadata: TransactionMetadata, asked: Identity | None = None) -> None:
        """What is in the log is what is known: if it can't be written, nothing has changed. `asked`: who ends
        a transaction by it, and may ask again with the epoch that is over then.
        """
        self._log.append(entry.transactional_id, metadata)
        entry.metadata, entry.orphan = metadata, False
        if metadata.state not in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
            entry.ending = asked  # who ended the one before has heard of it

    def _settled(self, entry: Entry) -> TransactionMetadata:
        """See that a decided transaction is complete. ConcurrentTransactionsError."""
        if not self._try_complete(entry):
            raise ConcurrentTransactionsError(
                f"the last transaction of {entry.transactional_id!r} is still being ended"
            )
        return entry.metadata  # type: ignore[return-value]

    def _decide(self, entry: Entry, commit: bool, asked: Identity | None = None) -> None:
        known = entry.metadata
        assert known is not None
        following = self._new_id() if known.exhausted else NO_PRODUCER_ID
        self._write(entry, known.decided(commit, self._clock(), following), asked)
        self._sync_decision(entry)

    def _sync_decision(self, entry: Entry) -> None:
        """No marker of a commit may be durable before the decision is. StorageError."""
        known = entry.metadata
        assert known is not None
        if known.state is State.PREPARE_COMMIT and self._ending.durable(known.partitions):
            self._log.sync(entry.transactional_id)

    def _try_complete(self, entry: Entry) -> bool:
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
                self._write(entry, known.completed(self._clock()))
        except Exception as error:
            self._upkeep.failed(f"the transaction of {entry.transactional_id!r} is {known.state.name}", error)
            return False
        return True

    # --- what nobody asks for ---------------------------------------------------------------

    def settle(self) -> None:
        """End what a process that is gone left open, and what could not be ended yet."""
        for entry in self._all():
            with entry.lock:
                known = entry.metadata
                try:
                    if known is not None and known.state is State.ONGOING and entry.orphan:
                        self._decide(entry, self._lost.was_committed(known))
                except Exception as error:
                    self._upkeep.failed(f"{entry.transactional_id!r} can't be ended", error)
                    continue
                if self._try_complete(entry):
                    self._raise_epoch(entry)
        for producer_id in self._lost.producers:
            try:
                self._lost.end(producer_id)
            except Exception as error:
                self._upkeep.failed(f"transactions of producer {producer_id} can't be ended", error)

    def _raise_epoch(self, entry: Entry) -> None:
        """Let the log know what the partitions do, before they forget it."""
        known = entry.metadata
        raised = None if known is None else self._lost.raised(known, self._clock())  # None: never written
        if raised is not None and raised is not known:
            try:
                self._write(entry, raised)
            except Exception as error:
                self._upkeep.failed(f"the epoch of {entry.transactional_id!r} can't be raised", error)

    def abort_timed_out(self) -> None:
        """Abort transactions that are open for longer than their producer's `transaction_timeout_ms`."""
        now = self._clock()
        for entry in self._all():
            with entry.lock:
                known = entry.metadata
                if known is None or known.state is not State.ONGOING:
                    continue
                # As if its producer were gone; unless that ends it first, after all.
                entry.orphan = known.started_ms + known.timeout_ms < now
        self.settle()

    def expire(self) -> None:
        """Forget ids that were not used for `transactional.id.expiration.ms`."""
        least = self._clock() - self._config.transactional_id_expiration_ms
        for entry in self._all():
            with entry.lock:
                known = entry.metadata
                if known is None or not known.state.settled or known.updated_ms > least:
                    continue
                self._log.append(entry.transactional_id, None)
                entry.metadata = known.expired(self._clock())
                with self._lock:
                    self._entries.pop(entry.transactional_id, None)

    def _all(self) -> list[Entry]:
        with self._lock:
            return list(self._entries.values())

    def close(self) -> None:
        """Abort what is open, as its producers can't go on. What fails is left to the next open."""
        for entry in self._all():
            with entry.lock:
                known = entry.metadata
                if known is not None and known.state is State.ONGOING:
                    entry.orphan = True
        self.settle()


def _check(entry: Entry, identity: Identity) -> TransactionMetadata:
    """ProducerFencedError unless `identity` is that of the id's last producer."""
    known = entry.metadata
    assert known is not None
    if (known.producer_id, known.producer_epoch) != identity:
        raise ProducerFencedError(
            f"producer {identity[0]} of epoch {identity[1]} is fenced: {entry.transactional_id!r} "
            f"has gone on to producer {known.producer_id} of epoch {known.producer_epoch}"
        )
    return known
