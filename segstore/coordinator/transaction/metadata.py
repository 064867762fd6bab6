"""`TransactionMetadata`: the state of one transactional id, and the order of states (Kafka:
TransactionMetadata, TransactionState).

Threads: any; values are immutable.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from segstore.coordinator.structs import TopicPartition
from segstore.records.header import NO_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP

MAX_EPOCH = (1 << 15) - 2
"""The last epoch that a producer gets; the next epoch is reserved for the markers of its last transaction."""

EPOCH_EACH = 2
"""This store's transaction.version (KIP-890): each commit or abort raises the epoch, so that each transaction
has an epoch of its own. In earlier versions a commit does not raise the epoch.
"""

EPOCH_KEPT = 0
"""The transaction.version of clients from before KIP-890."""


class Begin(NamedTuple):
    """The first record of a transaction in a partition. Offset and leader epoch identify the record even
    after the log was truncated; the topic id identifies the topic even after a topic of the same name was
    deleted.
    """

    at: TopicPartition
    topic_id: str
    offset: int
    leader_epoch: int


class TransactionState(IntEnum):
    """The state of a transaction; each value is the state's number in Kafka's log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6

    @property
    def prepared(self) -> bool:
        """Return whether this is PrepareCommit or PrepareAbort: markers must then be written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def commits(self) -> bool:
        """Return whether the outcome is a commit."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    @property
    def idle(self) -> bool:
        """Return whether no transaction is open: the id may then begin a transaction, or expire."""
        return self in _IDLE


_IDLE = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
BEFORE = {
    TransactionState.EMPTY: _IDLE,
    TransactionState.ONGOING: _IDLE | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    TransactionState.PREPARE_ABORT: _IDLE | {TransactionState.ONGOING},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.DEAD: _IDLE,
}
"""The states that may come directly before each state."""


class TransactionMetadata(NamedTuple):
    """The state of one transactional id. Times are ms since the epoch, -1 for none.

    If the commit or abort of a transaction uses up the epochs, the producer gets `next_producer_id` when all
    markers are written; `previous_producer_id` is the producer id before the present one. `client_version` is
    the transaction.version. `remote` is 1 if the producer is a client of a server, because this client may
    live longer than this process. In PrepareCommit and PrepareAbort, if the producer keeps its epoch,
    `begins` is the transaction's first record in each partition that has one. `begins` is None in other
    states, if the epoch was raised, or if a partition could not be read.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIMESTAMP
    updated_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = 0
    remote: int = 0
    begins: frozenset[Begin] | None = None

    def _to(self, state: TransactionState, now: int, **changes: object) -> TransactionMetadata:
        assert self.state in BEFORE[state], f"{self.state.name} can't become {state.name}"
        changes = {"begins": None, **changes}
        return self._replace(state=state, updated_ms=now, **changes)  # type: ignore[arg-type]

    @property
    def committed(self) -> tuple[int, int] | None:
        """Return (producer id, epoch) of the transaction that this state commits; None if the state commits
        no transaction, or the epoch is not known.
        """
        return self.last_ended if self.state.commits else None

    @property
    def last_ended(self) -> tuple[int, int] | None:
        """Return (producer id, epoch) of the transaction that was committed or aborted last; the
        transaction's producer may repeat the commit or abort (KIP-890). Return None if there was no such
        transaction, or if its commit or abort did not raise the producer's epoch.
        """
        if (
            self.state in (TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.DEAD)
            or self.client_version < EPOCH_EACH
        ):
            return None
        if not self.state.prepared and not self.producer_epoch:
            return self.previous_producer_id, MAX_EPOCH
        return self.producer_id, self.transaction_epoch

    @property
    def exhausted(self) -> bool:
        """Return whether no epoch is left for a producer with this producer id."""
        return self.producer_epoch >= MAX_EPOCH

    def covers(self, producer_epoch: int) -> bool:
        """Return whether records of this epoch belong to the transaction of this state."""
        if self.client_version < EPOCH_EACH and self.state is TransactionState.PREPARE_ABORT:
            # The transaction's records may have an earlier epoch: a broker that initializes a new producer
            # raises the epoch before it aborts the transaction.
            return producer_epoch <= self.producer_epoch
        return producer_epoch == self.transaction_epoch

    @property
    def transaction_epoch(self) -> int:
        """Return the epoch of the transaction's records; the transaction's markers have `producer_epoch`."""
        ended = self.state is not TransactionState.ONGOING and self.client_version >= EPOCH_EACH
        return self.producer_epoch - ended

    def next_producer(self, timeout_ms: int, now: int) -> TransactionMetadata:
        """Return the state for a new producer with the same producer id, in the next epoch. The first epoch
        is 0.
        """
        return self.emptied(self.producer_epoch + 1, now)._replace(timeout_ms=timeout_ms)

    def emptied(self, producer_epoch: int, now: int) -> TransactionMetadata:
        """Return the state EMPTY with this epoch: no transaction is open, and the outcome of the last
        transaction is forgotten.
        """
        return self._to(
            TransactionState.EMPTY,
            now,
            producer_epoch=producer_epoch,
            partitions=frozenset(),
            started_ms=NO_TIMESTAMP,
            client_version=EPOCH_EACH,
        )

    def rotated(self, producer_id: int, timeout_ms: int, now: int) -> TransactionMetadata:
        """Return the state for a new producer with this producer id, in epoch 0."""
        fresh = self._replace(producer_epoch=NO_EPOCH).next_producer(timeout_ms, now)
        return fresh._replace(producer_id=producer_id, previous_producer_id=self.producer_id)

    def with_partitions(self, added: Iterable[TopicPartition], now: int) -> TransactionMetadata:
        """Return the state with added partitions. It is written before the first records of these
        partitions.
        """
        started = self.started_ms if self.state is TransactionState.ONGOING else now
        return self._to(
            TransactionState.ONGOING, now, partitions=self.partitions | set(added), started_ms=started
        )

    def decided(self, commit: bool, now: int, next_producer_id: int = NO_PRODUCER_ID) -> TransactionMetadata:
        """Return the state PrepareCommit or PrepareAbort. After this state, the markers must be written.

        The markers have the next epoch, so late batches of the producer are refused, and never join another
        transaction. If no epoch is left, `next_producer_id` replaces the producer's id when all markers are
        written.
        """
        return self._to(
            TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
            now,
            producer_epoch=min(self.producer_epoch + 1, MAX_EPOCH + 1),
            next_producer_id=next_producer_id,
            client_version=EPOCH_EACH,
        )

    def decided_in_epoch(
        self, commit: bool, now: int, begins: frozenset[Begin] | None = None
    ) -> TransactionMetadata:
        """Return the state PrepareCommit or PrepareAbort of a producer that keeps its epoch (KIP-98): the
        markers have the epoch of the records, and `begins` identifies the transaction within the epoch.
        """
        state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        return self._to(state, now, client_version=EPOCH_KEPT, begins=begins)

    def completed(self, now: int) -> TransactionMetadata:
        """Return the state that follows when all markers were written."""
        after = TransactionState.COMPLETE_COMMIT if self.state.commits else TransactionState.COMPLETE_ABORT
        done = self._to(after, now, partitions=frozenset())
        if self.next_producer_id == NO_PRODUCER_ID:
            return done
        return done._replace(
            producer_id=self.next_producer_id,
            producer_epoch=0,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )

    def expired(self, now: int) -> TransactionMetadata:
        """Return the state DEAD, which an expired id gets."""
        return self._to(TransactionState.DEAD, now)
