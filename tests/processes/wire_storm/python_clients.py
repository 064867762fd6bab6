"""The producers and consumers of kafka-python, and segstore's own, whose names are the same, as `roles` use
them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import kafka
import kafka.errors
from histories import Part
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.structs import OffsetAndMetadata
from kafka_python import knowing

import segstore
from segstore.client.consumer import ConsumerRebalanceListener
from segstore.errors import SegstoreError

from .told import ANYWHERE, HEARTBEAT_MS, SESSION_MS, Ended, Refused

_ERRORS = (kafka.errors.KafkaError, SegstoreError)
_WAIT = 40.0  # seconds; kafka-python repeats requests after 20
_KAFKA = {"reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 300, "retry_backoff_ms": 50}


class Library:
    """kafka-python, by the address of a server."""

    part = kafka.TopicPartition

    def __init__(self, address: str) -> None:
        self._common = {"bootstrap_servers": address, "request_timeout_ms": 20_000, **_KAFKA}

    def place(self, offset: int) -> Any:
        return OffsetAndMetadata(offset, "", -1)

    def producer(self, **settings: Any) -> Any:
        own = {"max_block_ms": 60_000, "delivery_timeout_ms": 60_000}
        return kafka.KafkaProducer(**self._common, **own, **settings)

    def consumer(self, **settings: Any) -> Any:
        return kafka.KafkaConsumer(**self._common, fetch_max_wait_ms=100, **settings)


class Own:
    """segstore's, in the process that has the store."""

    part = segstore.TopicPartition

    def __init__(self, store: segstore.Store) -> None:
        self._store = store

    def place(self, offset: int) -> Any:
        return segstore.OffsetAndMetadata(offset)

    def producer(self, **settings: Any) -> Any:
        return segstore.Producer(self._store, **settings)

    def consumer(self, **settings: Any) -> Any:
        return segstore.Consumer(self._store, **settings)


class Sender:
    """A producer."""

    def __init__(self, library: Library | Own, idempotent: bool, transactional_id: str | None = None) -> None:
        self._library = library
        own: dict[str, Any] = {"acks": "all", "enable_idempotence": idempotent}
        if transactional_id is not None:
            own["transactional_id"] = transactional_id
        if not idempotent:
            own["max_in_flight_requests_per_connection"] = 1
        self._producer = _call(lambda: library.producer(linger_ms=2, **own))
        self._sent: list[tuple[Any, Callable[[int], None]]] = []

    def send(self, topic: str, partition: int, value: str, told: Callable[[int], None]) -> None:
        future = _call(lambda: self._producer.send(topic, value.encode(), partition=partition))
        self._sent.append((future, told))

    def flush(self) -> None:
        """Wait until all have been told."""
        try:
            self._producer.flush()
        except _ERRORS as error:
            raise Ended(str(error)) from error
        finally:
            for future, told in self._sent:
                told(_offset(future))
            self._sent.clear()

    def init(self) -> None:
        _call(self._producer.init_transactions)

    def begin(self) -> None:
        _call(self._producer.begin_transaction)

    def send_offsets(self, at: dict[Part, int], taker: Taker) -> None:
        places = {self._library.part(*part): self._library.place(offset) for part, offset in at.items()}
        if taker.metadata.generation_id < 0:
            raise Refused("it is no member any more")
        try:
            self._bounded(lambda: self._producer.send_offsets_to_transaction(places, taker.metadata))
        except _ERRORS as error:
            raise Refused(str(error)) from error

    def commit(self) -> None:
        _call(lambda: self._bounded(self._producer.commit_transaction))

    def abort(self) -> None:
        _call(lambda: self._bounded(self._producer.abort_transaction))

    def _bounded(self, call: Callable[[], Any]) -> None:
        """Call, and wait for no longer than `_WAIT`: kafka-python 3.0.12 waits for ever for the answer to a
        request of a transaction that it has not sent, where its connection ended at a bad moment.
        """
        if isinstance(self._library, Own):
            call()
            return
        failed: list[BaseException] = []

        def run() -> None:
            try:
                call()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(_WAIT)
        if thread.is_alive():
            raise Ended("it waits for ever")
        if failed:
            raise failed[0]

    def close(self) -> None:
        try:
            self._producer.close(timeout=5)
        except _ERRORS:
            return


def _offset(future: Any) -> int:
    try:
        offset = future.get(timeout=0)
    except Exception:  # it was not acknowledged, or nobody knows
        return -1
    return ANYWHERE if offset.offset is None or offset.offset < 0 else offset.offset


def _call(call: Callable[[], Any]) -> Any:
    """Each error ends the client: what it means for a transaction is not asked."""
    try:
        return call()
    except _ERRORS as error:
        raise Ended(f"{type(error).__name__}: {error}") from error


class Taker:
    """A consumer. `on_take` and `on_give` are called with partitions, within `poll`."""

    def __init__(self, library: Library | Own, group: str | None, committed_only: bool) -> None:
        self._library = library
        self.consumer = _call(
            lambda: library.consumer(
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                partition_assignment_strategy=["range"]
                if isinstance(library, Own)
                else [RangePartitionAssignor],
                session_timeout_ms=SESSION_MS,
                heartbeat_interval_ms=HEARTBEAT_MS,
                isolation_level="read_committed" if committed_only else "read_uncommitted",
            )
        )

    def subscribe(
        self,
        topics: Iterable[str],
        on_take: Callable[[list[Part]], None],
        on_give: Callable[[list[Part]], None],
    ) -> None:
        base = (
            ConsumerRebalanceListener if isinstance(self._library, Own) else kafka.ConsumerRebalanceListener
        )

        class Listener(base):  # type: ignore[misc, valid-type]
            def on_partitions_assigned(listener, assigned: Any) -> None:
                # Later a member that was taken for failed may already be none any more: offsets that it then
                # commits in a transaction are refused for their old generation only.
                self.metadata = self.consumer.group_metadata()
                on_take([tuple(tp) for tp in assigned])

            def on_partitions_revoked(self, revoked: Any) -> None:
                on_give([tuple(tp) for tp in revoked])

            def on_partitions_lost(self, lost: Any) -> None:
                on_give([tuple(tp) for tp in lost])

        topics = list(topics)
        if isinstance(self._library, Library):
            _call(lambda: knowing(self.consumer, topics))
        self.consumer.subscribe(topics, listener=Listener())

    def read_all(self, parts: Iterable[Part]) -> None:
        parts = list(parts)
        self.consumer.assign([self._library.part(*part) for part in parts])
        for part in parts:
            self.consumer.seek(self._library.part(*part), 0)

    def poll(self, most: int) -> Iterator[tuple[Part, int, str]]:
        """Yield records; partitions are taken and given away before the first."""
        try:
            polled = self.consumer.poll(timeout_ms=500, max_records=most)
        except _ERRORS as error:
            raise Ended(str(error)) from error
        for tp, records in polled.items():
            for record in records:
                yield tuple(tp), record.offset, bytes(record.value).decode()

    def commit(self, at: dict[Part, int]) -> bool:
        try:
            self.consumer.commit(
                {self._library.part(*part): self._library.place(offset) for part, offset in at.items()}
            )
        except _ERRORS:
            return False
        return True

    def seek(self, part: Part, offset: int) -> bool:
        try:
            self.consumer.seek(self._library.part(*part), offset)
        except (*_ERRORS, AssertionError):
            return False
        return True

    def close(self) -> None:
        try:
            self.consumer.close()
        except _ERRORS:
            return
