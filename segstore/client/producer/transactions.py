"""`Transactions`: the transactions of a producer. It decides which calls are allowed in which phase of a
transaction (Kafka: TransactionManager).

On disk: nothing of its own; the store's `TransactionCoordinator` decides the outcomes and writes them.

Threads: any. The sender reads the phase and the errors before each append, and commits or aborts
transactions.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from segstore.client.producer.accumulator import Accumulator
from segstore.client.producer.config import ProducerConfig
from segstore.coordinator.retriable import passes
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.coordinator.transaction.coordinator import TransactionCoordinator
from segstore.coordinator.transaction.state_log import Identity
from segstore.errors import (
    IllegalStateError,
    InvalidArgumentError,
    InvalidGroupIdError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    InvalidTypeError,
    KafkaTimeoutError,
    ProducerFencedError,
    SegstoreError,
    TransactionAbortedError,
    TransactionalIdNotFoundError,
    copy_of,
)
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.storage.store.store import Store
from segstore.threads import answer

# --- offsets -----------------------------------------------------------------------------------

# Checks of the arguments of `send_offsets_to_transaction`.


def offsets_of(given: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """Check offsets, and return them as {TopicPartition: OffsetAndMetadata}. Raises InvalidTypeError,
    InvalidArgumentError.
    """
    if not isinstance(given, Mapping):
        raise InvalidTypeError(
            f"offsets is {type(given).__name__}: allowed is {{TopicPartition: OffsetAndMetadata}}"
        )
    return {_partition(key): _offset(key, value) for key, value in given.items()}


def _partition(key: Any) -> TopicPartition:
    if not isinstance(key, tuple) or len(key) != 2 or not isinstance(key[0], str) or type(key[1]) is not int:
        raise InvalidTypeError(f"offsets has {key!r:.80} for a key: allowed is a TopicPartition")
    return TopicPartition(*key)


def _offset(key: Any, value: Any) -> OffsetAndMetadata:
    offset = getattr(value, "offset", None)
    if type(offset) is not int:
        raise InvalidTypeError(f"offsets[{key!r:.80}] is {value!r:.80}: allowed is an OffsetAndMetadata")
    if offset < 0:
        raise InvalidArgumentError(f"offsets[{key!r:.80}] is {offset}: must be at least 0")
    return OffsetAndMetadata(offset, value.metadata or "", getattr(value, "leader_epoch", -1))


def group_of(given: Any) -> ConsumerGroupMetadata:
    """Return the metadata of a group. `given` is the group's id, or a ConsumerGroupMetadata. Raises
    InvalidTypeError, InvalidGroupIdError.
    """
    if isinstance(given, str):
        given = ConsumerGroupMetadata(given)
    if not isinstance(given, ConsumerGroupMetadata):
        raise InvalidTypeError(
            f"group_metadata is {type(given).__name__}: allowed is a group's id or a ConsumerGroupMetadata"
        )
    if not isinstance(given.group_id, str) or not given.group_id:
        raise InvalidGroupIdError(f"group_id={given.group_id!r}: must be a str that is not empty")
    return given


# --- transactions ------------------------------------------------------------

log = Logger("segstore")
T = TypeVar("T")


class TransactionPhase(Enum):
    """The phase of a transactional producer. The texts of errors contain the value."""

    UNINITIALIZED = "init_transactions() was not called"
    READY = "there is no transaction: call begin_transaction()"
    OPEN = "a transaction is open"
    COMMITTING = "a transaction is being committed"
    ABORTING = "a transaction is being aborted"


class Transactions:
    """The transactions of one producer. `gate(True)` allows the C code of `send` to accept records. After
    `gate(False)` each `send` calls `check_send`. `restart` resets the sequences.
    """

    def __init__(
        self,
        store: Store,
        config: ProducerConfig,
        accumulator: Accumulator,
        gate: Callable[[bool], None],
    ) -> None:
        self._store, self._accumulator, self._gate = store, accumulator, gate
        assert config.transactional_id is not None
        self._id: str = config.transactional_id
        self._timeout_ms = config.transaction_timeout_ms
        self._max_block, self._backoff = config.max_block_ms / 1000, config.retry_backoff_ms / 1000
        # This lock guards the attributes below.
        self._lock = Mutex()
        # Each call that changes the phase holds this lock.
        self._calls = Mutex()
        self.phase = TransactionPhase.UNINITIALIZED
        self._identity: Identity | None = None
        # The error of a failed record. If it is set, only an abort is allowed.
        self._failed: BaseException | None = None
        self._fatal: BaseException | None = None
        # `_started`: whether the coordinator may know the transaction.
        self._started = False
        self.restart: Callable[[], None] = lambda: None

    # --- the sender's side ----------------------------------------------------------------

    @property
    def identity(self) -> Identity:
        """Return the producer id and epoch."""
        assert self._identity is not None
        return self._identity

    def refusal(self) -> BaseException | None:
        """Return the error with which waiting records must fail now, or None if they may be written."""
        if self._fatal is not None:
            return self._fatal
        if self.phase is TransactionPhase.ABORTING or self._failed is not None:
            return self._aborted()
        if self.phase in (TransactionPhase.OPEN, TransactionPhase.COMMITTING):
            return None
        return IllegalStateError(f"a record was sent outside of a transaction: {self.phase.value}")

    def _aborted(self) -> TransactionAbortedError:
        error = TransactionAbortedError("the record was not written: its transaction is being aborted")
        error.__cause__ = self._failed
        return error

    def appending(self, partitions: Collection[TopicPartition]) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that adds these partitions to the transaction. Within the context
        manager's block, batches may be appended to the partitions.
        """
        self._started = True
        return self._coordinator().appending(self._id, self.identity, partitions)

    def failed(self, error: BaseException) -> BaseException:
        """Record that a record has failed: from now on the transaction can only be aborted. Return the error
        for the record's future.
        """
        if isinstance(error, InvalidProducerEpochError | TransactionalIdNotFoundError):
            error = self._outdated(error)
        with self._lock:
            if not isinstance(error, TransactionAbortedError) and self.phase in (
                TransactionPhase.OPEN,
                TransactionPhase.COMMITTING,
            ):
                self._failed = self._failed or copy_of(error)
                # From now on each `send` calls `check_send`, which raises the error.
                self._gate(False)
        return error

    def _outdated(self, error: BaseException) -> BaseException:
        """Return the error for an epoch that is no longer valid. It is InvalidProducerEpochError if the
        coordinator has aborted the transaction after the transaction's time-out, and ProducerFencedError if
        another producer has fenced this producer.
        """
        with contextlib.suppress(SegstoreError):
            if self._coordinator().has_ended(self._id, self.identity):
                cause, error = (
                    error,
                    InvalidProducerEpochError(
                        f"transactional_id {self._id!r}: the transaction was open for more than "
                        f"transaction_timeout_ms={self._timeout_ms}, and is aborted"
                    ),
                )
                error.__cause__ = cause
                return error
        return self._fence(error)

    def _fence(self, error: BaseException) -> BaseException:
        if not isinstance(error, ProducerFencedError):
            cause, error = error, ProducerFencedError(f"transactional_id {self._id!r}: {error}")
            error.__cause__ = cause
        with self._lock:
            self._fatal = self._fatal or copy_of(error)
        self._gate(False)
        return error

    # --- the application's side -------------------------------------------------------------

    def check_send(self) -> None:
        """Check that a record may be sent now. Raises ProducerFencedError if the producer was fenced,
        IllegalStateError if no transaction is open, and TransactionAbortedError if the transaction can only
        be aborted.
        """
        self._check("send()", TransactionPhase.OPEN)
        self._check_failed()

    def init(self) -> None:
        """Register the transactional id with the coordinator. Raises the errors of
        `Producer.init_transactions`.
        """
        with self._calls:
            if self._fatal is None and self.phase is not TransactionPhase.UNINITIALIZED:
                return
            self._check("init_transactions()", TransactionPhase.UNINITIALIZED)
            self._identity = self._patiently(
                "init_transactions()",
                lambda: self._coordinator().init_producer_id(self._id, self._timeout_ms),
            )
            self.phase = TransactionPhase.READY

    def begin(self) -> None:
        """Begin a transaction. Raises the errors of `Producer.begin_transaction`."""
        with self._calls:
            self._check("begin_transaction()", TransactionPhase.READY)
            self.phase = TransactionPhase.OPEN
            self._gate(True)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata | str
    ) -> None:
        """Commit a group's offsets with the transaction. Raises the errors of
        `Producer.send_offsets_to_transaction`.
        """
        given, member = offsets_of(offsets), group_of(group)
        self._check("send_offsets_to_transaction()", TransactionPhase.OPEN)
        self._check_failed()
        if not given:
            return
        from segstore.coordinator.group.coordinator import GroupCoordinator
        from segstore.coordinator.offsets.group_offsets import TOPIC, GroupOffsets

        groups, kept = shared(self._store, GroupCoordinator), shared(self._store, GroupOffsets)
        assert member.group_id is not None
        at = TopicPartition(TOPIC, kept.partition_for(member.group_id))

        def write() -> None:
            assert member.group_id is not None
            with self.appending([at]):
                kept.commit_transactional(member.group_id, given, *self.identity)

        try:
            self._patiently("send_offsets_to_transaction()", lambda: groups.while_valid(member, given, write))
        except SegstoreError as error:
            raise self.failed(error) from error.__cause__

    def commit(self) -> None:
        """Commit the transaction. Raises the errors of `Producer.commit_transaction`."""
        with self._calls:
            self._check("commit_transaction()", TransactionPhase.OPEN, TransactionPhase.COMMITTING)
            self._check_failed()
            self._gate(False)
            self.phase = TransactionPhase.COMMITTING
            try:
                identity = self._patiently("commit_transaction()", lambda: self._by_sender(self._commit))
            except InvalidTxnStateError as error:
                # The coordinator has aborted the transaction, for example after the transaction's time-out.
                self.phase = TransactionPhase.OPEN
                raise self.failed(error) from error.__cause__
            if identity is None:
                self._check("commit_transaction()", TransactionPhase.COMMITTING)
                self.phase = TransactionPhase.OPEN
                raise self._must_abort()
            self._wait_for_markers()
            self._restart(identity)

    def abort(self) -> None:
        """Abort the transaction. Raises the errors of `Producer.abort_transaction`."""
        with self._calls:
            self._check("abort_transaction()", TransactionPhase.OPEN, TransactionPhase.ABORTING)
            self._gate(False)
            self.phase = TransactionPhase.ABORTING
            # All records become due, so that the sender fails the waiting batches at once. `_by_sender` waits
            # for the append that is running.
            self._accumulator.hurry()
            end = partial(self._end, commit=False)
            identity = self._patiently("abort_transaction()", lambda: self._by_sender(end))
            self._wait_for_markers()
            self._restart(identity)

    def close(self) -> None:
        """Abort an open transaction when the producer is closed. If the abort fails, the coordinator aborts
        the transaction later.
        """
        with self._calls:
            if self._fatal is None and self.phase in (
                TransactionPhase.OPEN,
                TransactionPhase.COMMITTING,
                TransactionPhase.ABORTING,
            ):
                try:
                    self._end(commit=False)
                except SegstoreError as error:
                    log.info("the transaction of %r is left to the coordinator: %s", self._id, error)

    # --- steps ----------------------------------------------------------------------------------

    def _coordinator(self) -> TransactionCoordinator:
        return shared(self._store, TransactionCoordinator)

    def _by_sender(self, end: Callable[[], T]) -> T:
        """Make the sender call `end` when all records have an outcome. Return the result of `end`."""
        return answer(end, self._accumulator.after_all)

    def _commit(self) -> Identity | None:
        """Commit, and return (producer id, epoch) of the next transaction. Return None if the transaction has
        failed, or the producer was fenced.
        """
        return None if self._fatal or self._failed else self._end(commit=True)

    def _end(self, commit: bool) -> Identity:
        if commit and not self._started:
            with self._coordinator().verifying(self._id, self.identity):
                return self.identity  # The transaction has no records.
        return self._coordinator().end(self._id, self.identity, commit)

    def _wait_for_markers(self) -> None:
        """Wait until the markers of the transaction are written, because its records can be read only after
        that. Return without an error after max_block_ms.
        """
        with contextlib.suppress(KafkaTimeoutError):
            self._patiently("the end of a transaction", lambda: self._coordinator().complete(self._id))

    def _restart(self, identity: Identity) -> None:
        """Prepare the next transaction, which has `identity`, (producer id, epoch). Each transaction has its
        own epoch, and in each epoch the sequences begin at 0.
        """
        self.restart()
        with self._lock:
            self._identity, self._failed, self._started = identity, None, False
            self.phase = TransactionPhase.READY

    def _check(self, call: str, *phases: TransactionPhase) -> None:
        if self._fatal is not None:
            raise copy_of(self._fatal)
        if self.phase not in phases:
            raise IllegalStateError(f"{call} is not allowed now: {self.phase.value}")

    def _check_failed(self) -> None:
        if self._failed is not None:
            raise self._must_abort()

    def _must_abort(self) -> TransactionAbortedError:
        error = TransactionAbortedError(
            "a record of the transaction was not written, abort_transaction() is all that can be done: "
            f"{self._failed}"
        )
        error.__cause__ = self._failed
        return error

    def _patiently(self, call: str, ask: Callable[[], T]) -> T:
        """Return the result of `ask`. After a temporary error `ask` is called again, for up to
        `max_block_ms`. Raises KafkaTimeoutError, ProducerFencedError.
        """
        end = None
        while True:
            try:
                return ask()
            except (InvalidProducerEpochError, TransactionalIdNotFoundError) as error:
                raise self._outdated(error) from error.__cause__
            except SegstoreError as error:
                if not passes(error):
                    raise
                # `max_block_ms` counts from the first failure, because `ask` may have waited for records
                # before the failure.
                end = end or time.monotonic() + self._max_block
                left = end - time.monotonic()
                if left <= 0:
                    raise KafkaTimeoutError(
                        f"{call} did not succeed within max_block_ms={self._max_block * 1000:.0f}: {error}"
                    ) from error
                time.sleep(min(self._backoff, left))
