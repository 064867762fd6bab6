"""`Producer`: the producer of an application. It connects the stages of Kafka's producer.

A record passes through interceptors, serializers and partitioner (modules `intake`, `partitioner`), the
accumulator with its buffer pool, and the sender with its delivery. At last the record's future gets the
outcome. On disk: nothing of its own; the sender appends to the store's logs.

Threads: any. A forked child can't use the parent's producer.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from segstore._native._producer import Sending
from segstore.client.producer.accumulator import Accumulator
from segstore.client.producer.config import ProducerConfig
from segstore.client.producer.ending import ProducerEnding
from segstore.client.producer.future import FutureRecordMetadata
from segstore.client.producer.intake import Intake
from segstore.client.producer.metrics import ProducerMetrics, Snapshot
from segstore.client.producer.partitioner import Routing
from segstore.client.producer.sender import Sender
from segstore.client.producer.transactions import Transactions
from segstore.closing import Closing
from segstore.config import arguments
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import (
    ClientClosedError,
    ForkedError,
    IllegalStateError,
    InvalidArgumentError,
    InvalidTypeError,
    ReadOnlyError,
    copy_of,
)
from segstore.storage.context import wall_clock
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from segstore.client.producer.settings import ProducerSettings


def _of_guest(store: Store, config: ProducerConfig, settings: Mapping[str, Any]) -> ProducerConfig:
    """Return a producer's settings in a guest of a shared store, where idempotence is off by default. Raises
    IllegalStateError if a transactional_id or enable_idempotence was set.
    """
    for name in ("transactional_id", "enable_idempotence"):
        if settings.get(name):
            store.check_keeps(f"Producer({name}={settings[name]!r})")
    return dataclasses.replace(config, enable_idempotence=False)


class Producer(Closing):
    """A producer for the topics of a store that is open for writing.

    The settings are kafka-python's. Times are in ms, sizes in bytes. A producer is a context manager: at the
    end of the `with` block it sends all waiting records, and is closed.
    """

    DEFAULT_CONFIG: ClassVar[dict[str, Any]] = ProducerConfig.defaults()
    """{setting: default}, as in kafka-python. Programs use the keys to find the settings that a producer
    has.
    """

    def __init__(self, store: Store, **settings: Unpack[ProducerSettings]) -> None:
        """Raises ConfigError, ReadOnlyError, StoreClosedError. In a guest of a shared store idempotence is
        off, and a transactional_id or enable_idempotence raises IllegalStateError.
        """
        if not isinstance(store, Store):
            raise InvalidTypeError(f"store must be a Store, not {type(store).__name__}")
        self.config = config = ProducerConfig.parse(settings)
        store.topics()
        if store.mode != "rw":
            raise ReadOnlyError(f'{store.path} was opened with mode="r": open it with mode="rw" to send')
        if not store.keeps:
            self.config = config = _of_guest(store, config, settings)
        self._store = store
        self._accumulator = Accumulator(config)
        self._routing = Routing(store, self._accumulator, config.partitioner, config.batch_size)
        self._metrics = ProducerMetrics(config, self._accumulator.pool)
        clock = store.context.clock
        self._transactions = transactions = self._made_transactional()
        self._intake = Intake(config, self._routing, self._accumulator, transactions, clock)
        self._sending = sending = Sending()
        sending.now = None if clock is wall_clock else clock
        sending.take, sending.take_next = self._intake.take, self._intake.take_next
        self._accumulator.lend(sending)
        self._send = sending.send
        self._gate(transactions is None)
        parts = self._accumulator, self._routing, self._metrics
        self._sender = Sender(store, config, *parts, transactions)
        self._ending = ProducerEnding(
            repr(self), store.path, self._accumulator, self._routing, self._intake, self._sender
        )
        self._sender.start()
        store.attach_client(self._ending)

    def __repr__(self) -> str:
        return f"<Producer client_id={self.config.client_id}>"

    def _made_transactional(self) -> Transactions | None:
        if self.config.transactional_id is None:
            return None
        # The reference is weak, because the sender must not keep a dropped producer alive.
        me = weakref.ref(self)

        def let(open_: bool) -> None:
            if (producer := me()) is not None:
                producer._gate(open_)

        return Transactions(self._store, self.config, self._accumulator, let)

    def _gate(self, open_: bool) -> None:
        """If `open_` and `Intake.plain`, allow the C code of `send` to accept records. If not, the C code
        passes all records to `Intake`, which raises an error if records may not be sent.
        """
        # The C code looks up a record's queue in the dicts `sticky` and `by_key`. If the dicts have no queue,
        # it passes the record to `Intake`.
        plain = self._intake.plain and open_
        self._sending.sticky = self._routing.sticky if plain else {}
        self._sending.by_key = self._routing.by_key if plain else {}

    # --- sending ------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> FutureRecordMetadata:
        """Send a record, and return a future of the record's metadata. If neither a key nor a partition is
        given, the producer chooses the partition.

        `headers`: a list of (str, bytes or None). `timestamp_ms`: ms since the epoch, by default the current
        time. Waits up to `max_block_ms` while `buffer_memory` is full, then raises BufferExhaustedError.
        Raises SerializationError, InvalidTypeError, UnknownTopicOrPartitionError, RecordTooLargeError,
        ClientClosedError, ForkedError. With a transactional_id, also raises ProducerFencedError,
        IllegalStateError outside of a transaction, and TransactionAbortedError if the transaction can only be
        aborted. After an error the record was not accepted.
        """
        return self._send(topic, value, key, headers, partition, timestamp_ms)  # type: ignore[no-any-return]

    def partitions_for(self, topic: str) -> set[int]:
        """Return the numbers of a topic's partitions. Raises UnknownTopicOrPartitionError."""
        self._intake.check_open()
        return set(self._routing.partitions(topic))

    def bootstrap_connected(self) -> bool:
        """Return whether the producer and its store are open; there is no broker to connect to."""
        return self._accumulator.refusal is None and not self._store.context.closed

    def metrics(self) -> Snapshot | None:
        """Return {group: {name: value}} by Kafka's names; None with metrics_enabled=False."""
        return self._metrics.snapshot() if self.config.metrics_enabled else None

    # --- transactions -------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Register the transactional_id with the coordinator. Call this before any other method. Earlier
        producers with the same id are fenced, and their open transaction is aborted. A second call does
        nothing.

        Raises InvalidTxnTimeoutError, and IllegalStateError if the producer has no transactional_id. Raises
        KafkaTimeoutError after `max_block_ms`; the call may be repeated. All five transaction methods raise
        ClientClosedError, and ProducerFencedError if a newer producer has the id.
        """
        self._may_wait("init_transactions()")
        self._transactional().init()

    def begin_transaction(self) -> None:
        """Begin a transaction. After the commit, consumers with read_committed see all records of the
        transaction. Before the commit, and after an abort, they see none of these records. Raises
        IllegalStateError before init_transactions(), and within a transaction.
        """
        self._may_wait("begin_transaction()")
        self._transactional().begin()

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata | str,
    ) -> None:
        """Commit a group's offsets when the transaction is committed. If the transaction is aborted, the
        offsets are not committed. `group_metadata` is the result of Consumer.group_metadata(), or a group's
        id.

        Raises InvalidTypeError, InvalidArgumentError, InvalidGroupIdError, and IllegalStateError outside of a
        transaction. If the member is no longer in the group, raises UnknownMemberIdError,
        IllegalGenerationError, FencedInstanceIdError or RebalanceInProgressError; the transaction can then
        only be aborted.
        """
        self._may_wait("send_offsets_to_transaction()")
        self._transactional().send_offsets(offsets, group_metadata)

    def commit_transaction(self) -> None:
        """Send all waiting records, wait for all outcomes, and commit. On return the transaction is
        committed. Its records can be read after its markers were written; the call waits for that up to
        `max_block_ms`.

        Raises TransactionAbortedError if a record was not written: the transaction can then only be aborted.
        Raises IllegalStateError outside of a transaction. Raises KafkaTimeoutError or StorageError; the call
        may be repeated after these errors.
        """
        self._may_wait("commit_transaction()")
        self._transactional().commit()

    def abort_transaction(self) -> None:
        """Abort the transaction. The futures of unwritten records fail with TransactionAbortedError.

        Raises IllegalStateError outside of a transaction. Raises KafkaTimeoutError or StorageError; the call
        may be repeated after these errors.
        """
        self._may_wait("abort_transaction()")
        self._transactional().abort()

    def _transactional(self) -> Transactions:
        self._intake.check_open()
        if self._transactions is None:
            raise IllegalStateError(f"{self!r} has no transactional_id")
        return self._transactions

    def _may_wait(self, call: str) -> None:
        """Raise InvalidArgumentError in a callback, and ReentrantCallError in the sender's thread or in a
        signal handler that interrupted a call which holds a lock.
        """
        if self._accumulator.incomplete.in_callback():
            raise InvalidArgumentError(f"{call} in a callback would wait for itself")
        self._accumulator.lock.check_wait(call)

    # --- the end ----------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Send all waiting records now, and wait up to `timeout` seconds until every outcome is known. Raises
        KafkaTimeoutError, InvalidTypeError, InvalidArgumentError.
        """
        if timeout is not None:
            timeout = arguments.seconds("timeout", timeout, 0.0)
        if isinstance(self._accumulator.refusal, ForkedError):
            raise copy_of(self._accumulator.refusal)
        self._may_wait("flush()")
        self._accumulator.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Send all waiting records, and wait for that up to `timeout` seconds. After that, unwritten records
        fail with ClientClosedError. An open transaction is aborted. A second call waits, too. A call within a
        callback does not wait.
        """
        if timeout is not None:
            timeout = arguments.seconds("timeout", timeout, 0.0)
        self._ending.close(timeout)

    def __del__(self, kind: type[ClientClosedError] = ClientClosedError) -> None:
        # If the producer was not closed, the sender still writes the waiting records; after that its thread
        # stops. The error's class is a default argument, because this module's names may be deleted while the
        # interpreter exits.
        if getattr(self, "_ending", None) is not None:
            self._accumulator.leave(kind("the producer is gone"))
