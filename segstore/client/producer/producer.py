"""`Producer`: what an application sends with. A façade over the stages of Kafka's producer.

Interceptors, serializers, partitioner (`routing`), accumulator with its buffer pool, sender, futures: each
record passes them in this order. On disk: nothing of its own; the sender appends to the store's logs.
Threads: any. A child of a fork can't use its parent's producer.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from segstore.client.producer.accumulator import Accumulator
from segstore.client.producer.config import ProducerConfig
from segstore.client.producer.ending import Ending
from segstore.client.producer.future import FutureRecordMetadata
from segstore.client.producer.intake import Intake
from segstore.client.producer.metrics import ProducerMetrics, Snapshot
from segstore.client.producer.partitioner import Routing
from segstore.client.producer.record import RECORD_OVERHEAD
from segstore.client.producer.sender import Sender
from segstore.client.producer.transactions import Transactions
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
from segstore.records import HEADER_SIZE
from segstore.storage.context import wall_clock
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from typing_extensions import Self


class Producer:
    """Sends records to the topics of a store that is open for writing.

    Settings are kafka-python's; times in ms, sizes in bytes. A context manager: leaving it sends all.
    """

    def __init__(self, store: Store, **settings: Any) -> None:
        """ConfigError, ReadOnlyError, StoreClosedError."""
        if not isinstance(store, Store):
            raise InvalidTypeError(f"store must be a Store, not {type(store).__name__}")
        self.config = config = ProducerConfig.parse(settings)
        store.topics()
        if store.mode != "rw":
            raise ReadOnlyError(f'{store.path} was opened with mode="r": open it with mode="rw" to send')
        self._store = store
        self._accumulator = Accumulator(config)
        self._routing = Routing(store, self._accumulator, config.partitioner, config.batch_size)
        self._metrics = ProducerMetrics(config, self._accumulator.pool)
        clock = store._context.clock
        self._now = time.time if clock is wall_clock else lambda: (clock() + 0.5) / 1000
        self._plain_size = min(config.batch_size, config.max_request_size, config.buffer_memory) - HEADER_SIZE
        self._transactions = transactions = self._made_transactional()
        self._intake = Intake(config, self._routing, self._accumulator, transactions, self._now)
        self._gate(transactions is None)
        parts = self._accumulator, self._routing, self._metrics
        self._sender = Sender(store, config, *parts, transactions)
        self._ending = Ending(
            repr(self), store.path, self._accumulator, self._routing, self._intake, self._sender
        )
        self._sender.start()
        store._attach_client(self._ending)

    def __repr__(self) -> str:
        return f"<Producer client_id={self.config.client_id}>"

    def _made_transactional(self) -> Transactions | None:
        if self.config.transactional_id is None:
            return None
        gate = weakref.WeakMethod(self._gate)  # the sender must not keep a producer that is dropped

        def let(open_: bool) -> None:
            if (found := gate()) is not None:
                found(open_)

        return Transactions(self._store, self.config, self._accumulator, let)

    def _gate(self, open_: bool) -> None:
        """Have `send` take the short way, or look first whether it may send at all."""
        # What it looks up first; without an entry a record goes the long way.
        plain = self._intake.plain and open_
        self._sticky = self._routing.sticky if plain else {}
        self._by_key = self._routing.by_key if plain else {}

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
        """Hand a record over: a future of where it went. Without a key and a partition, any partition.

        `headers`: a list of (str, bytes or None). `timestamp_ms`: since the epoch, by default now. Waits up
        to `max_block_ms` while `buffer_memory` is full, then BufferExhaustedError. SerializationError,
        InvalidTypeError, UnknownTopicOrPartitionError, RecordTooLargeError, ClientClosedError, ForkedError:
        nothing was taken. With a transactional_id: IllegalStateError outside of a transaction,
        TransactionAbortedError in one that can only be aborted, ProducerFencedError.
        """
        if type(value) is bytes and partition is None and headers is None and timestamp_ms is None:
            size = len(value) + RECORD_OVERHEAD
            row: Any = value
            try:
                if key is None:
                    queue = self._sticky[topic]
                elif type(key) is bytes:
                    queue = self._by_key[topic][key]
                    size += len(key)
                    row = (value, key, ())
                    queue.rich = True
                else:
                    return self._intake.take(topic, value, key)
            except (KeyError, TypeError):
                return self._intake.take(topic, value, key)
            # From reading `left` to writing it nothing is called, so that CPython changes no thread in
            # between; an interpreter that did would only make a batch too large or too small.
            left = queue.left - size
            if left >= 0:
                queue.left = left
                future = FutureRecordMetadata()
                future._holder = queue
                future._at = row
                now = self._now  # calls of what a local name holds are the quicker ones
                future._time = now()
                append = queue.append
                append(future)
                if queue.left < 0:
                    self._accumulator.late(queue)
                return future
            if key is None and size <= self._plain_size:
                return self._intake.take_value(topic, value, size)
        return self._intake.take(topic, value, key, headers, partition, timestamp_ms)

    def partitions_for(self, topic: str) -> set[int]:
        """Numbers of a topic's partitions. UnknownTopicOrPartitionError."""
        self._intake.check_open()
        return set(self._routing.partitions(topic))

    def metrics(self) -> Snapshot | None:
        """{group: {name: value}} in Kafka's names; None with metrics_enabled=False."""
        return self._metrics.snapshot() if self.config.metrics_enabled else None

    # --- transactions -------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Take over the transactional_id, before all else: others that have it are fenced, and what they left
        open is aborted. A second call does nothing.

        IllegalStateError without a transactional_id; InvalidTxnTimeoutError; KafkaTimeoutError after
        `max_block_ms`: it may be called again. All five raise ProducerFencedError where a newer producer has
        the id, and ClientClosedError.
        """
        self._may_wait("init_transactions()")
        self._transactional().init()

    def begin_transaction(self) -> None:
        """Let all that is sent from now on be seen by who reads committed records when it is committed, at
        once, or never. IllegalStateError before init_transactions(), and within a transaction.
        """
        self._may_wait("begin_transaction()")
        self._transactional().begin()

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata | str,
    ) -> None:
        """Commit a group's offsets with the transaction, or not at all. `group_metadata`: what
        Consumer.group_metadata() gives, or a group's id.

        IllegalStateError outside of a transaction; InvalidTypeError, InvalidArgumentError,
        InvalidGroupIdError; UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError,
        RebalanceInProgressError for a member that is no more: the transaction can only be aborted.
        """
        self._may_wait("send_offsets_to_transaction()")
        self._transactional().send_offsets(offsets, group_metadata)

    def commit_transaction(self) -> None:
        """Send what is left, wait for all outcomes, and commit. Once it returns the outcome is decided, and
        can be read: where the disk refused that for `max_block_ms`, later.

        TransactionAbortedError where a record was not written: it can only be aborted then. IllegalStateError
        outside of a transaction. KafkaTimeoutError, StorageError: it may be called again.
        """
        self._may_wait("commit_transaction()")
        self._transactional().commit()

    def abort_transaction(self) -> None:
        """Drop what was not written, whose futures fail with TransactionAbortedError, and abort the rest.
        IllegalStateError outside of a transaction. KafkaTimeoutError, StorageError: it may be called again.
        """
        self._may_wait("abort_transaction()")
        self._transactional().abort()

    def _transactional(self) -> Transactions:
        self._intake.check_open()
        if self._transactions is None:
            raise IllegalStateError(f"{self!r} has no transactional_id")
        return self._transactions

    def _may_wait(self, call: str) -> None:
        """InvalidArgumentError in a callback, ReentrantCallError where a handler keeps the sender waiting."""
        if self._accumulator.incomplete.in_callback():
            raise InvalidArgumentError(f"{call} in a callback would wait for itself")
        self._accumulator.lock.check_wait(call)

    # --- the end ----------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Send all that was handed over now, and wait up to `timeout` seconds until every outcome is known.
        KafkaTimeoutError, InvalidTypeError, InvalidArgumentError.
        """
        if timeout is not None:
            timeout = arguments.seconds("timeout", timeout, 0.0)
        if isinstance(self._accumulator.refusal, ForkedError):
            raise copy_of(self._accumulator.refusal)
        self._may_wait("flush()")
        self._accumulator.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Send what is left, up to `timeout` seconds; what is not written by then fails with
        ClientClosedError. A transaction that is open is aborted. A second call waits too. In a callback
        it waits for nothing.
        """
        if timeout is not None:
            timeout = arguments.seconds("timeout", timeout, 0.0)
        self._ending.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self, kind: type[ClientClosedError] = ClientClosedError) -> None:
        # Not closed: what was sent is written all the same, and the thread ends. An interpreter that ends may
        # have taken a module's names away before.
        if getattr(self, "_ending", None) is not None:
            self._accumulator.leave(kind("the producer is gone"))
