"""The load of a soak: producers, consumers and a model of what compacted topics must say.

On disk: one store. Threads: one a worker; a keyed worker's model changes with its `lock` held only, and what
it has sent is acknowledged by then.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import segstore

MIB = 1 << 20
EVENTS, STATE, BOTH = "events", "state", "both"
PARTITIONS = {EVENTS: 4, STATE: 2, BOTH: 2}
RETAINED, SEGMENT, SMALL_SEGMENT = 32 * MIB, 8 * MIB, MIB
DELAY_MS, RETENTION_MS, BACKOFF_MS = 2000, 1000, 500
KEYS, VALUE_BYTES, AT_A_TIME = 2000, 200, 500
STORE = {"log.retention.check.interval.ms": RETENTION_MS, "log.cleaner.backoff.ms": BACKOFF_MS}
KEPT = {"retention.bytes": RETAINED, "segment.bytes": SEGMENT, "file.delete.delay.ms": DELAY_MS}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": SMALL_SEGMENT,
    "file.delete.delay.ms": DELAY_MS,
    "delete.retention.ms": 1000,
}
CONFIG: dict[str, dict[str, Any]] = {
    EVENTS: KEPT,
    STATE: COMPACTED,
    BOTH: {**COMPACTED, "cleanup.policy": "compact,delete", "retention.bytes": 4 * MIB},
}
INTERNAL = ("__consumer_offsets", "__transaction_state")


def opened(path: Path) -> segstore.Store:
    """The store with its topics."""
    store = segstore.open(path, config=STORE)
    for name, partitions in PARTITIONS.items():
        store.create_topic(name, partitions, CONFIG[name])
    return store


class Worker(threading.Thread):
    """Calls `work` until it is stopped; what that raises is kept in `error`."""

    def __init__(self, name: str, work: Callable[[], int], close: Callable[[], object]) -> None:
        super().__init__(name=name)
        self._work, self._close, self._ending = work, close, threading.Event()
        self.records = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                self.records += self._work()
            self._close()
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self._ending.set()


class Keyed:
    """Puts and deletes keys of its own in a compacted topic; `model` has what must be the latest."""

    def __init__(self, store: segstore.Store, topic: str, name: str, transactional: bool = False) -> None:
        self.topic, self.lock, self._rng, self._count = topic, threading.Lock(), random.Random(name), 0
        self.going = threading.Event()  # else who waits for the lock might wait for ever
        self.going.set()
        self.model: dict[bytes, bytes] = {}
        self._name, self._transactional = name, transactional
        settings: dict[str, Any] = {"linger_ms": 2, "compression_type": "lz4"}
        if transactional:
            self.producer = segstore.Producer(store, transactional_id=name, **settings)
            self.producer.init_transactions()
        else:
            self.producer = segstore.Producer(store, enable_idempotence=True, acks="all", **settings)

    def work(self) -> int:
        """One round of records, all acknowledged or all aborted."""
        self.going.wait()
        with self.lock:
            changes = self._send()
            for key, value in changes.items():
                if value is None:
                    self.model.pop(key, None)
                else:
                    self.model[key] = value
        return AT_A_TIME

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing of it changes meanwhile."""
        self.going.clear()
        try:
            with self.lock:
                yield
        finally:
            self.going.set()

    def _send(self) -> dict[bytes, bytes | None]:
        producer, changes = self.producer, dict[bytes, bytes | None]()
        if self._transactional:
            producer.begin_transaction()
        for _ in range(AT_A_TIME):
            self._count += 1
            key = b"%s-%d" % (self._name.encode(), self._rng.randrange(KEYS))
            value = None if self._rng.random() < 0.1 else b"%d " % self._count * (VALUE_BYTES // 8)
            producer.send(self.topic, value, key=key)
            changes[key] = value
        if self._transactional and self._rng.random() < 0.2:
            producer.abort_transaction()
            return {}
        if self._transactional:
            producer.commit_transaction()
        else:
            producer.flush()
        return changes


class Load:
    """All workers over one store."""

    def __init__(self, store: segstore.Store) -> None:
        self.keyed = [
            Keyed(store, STATE, "one"),
            Keyed(store, STATE, "txn", transactional=True),
            Keyed(store, BOTH, "two"),
        ]
        self.producers = [Worker(k.producer.config.client_id, k.work, k.producer.close) for k in self.keyed]
        self.producers += [
            _flood(store, name, idempotent=name == "idempotent") for name in ("plain", "idempotent")
        ]
        self.consumers = [_reader(store, EVENTS, group_id="g") for _ in range(2)]
        self.consumers.append(_reader(store, STATE, isolation_level="read_committed"))
        for name in INTERNAL:
            if name in store.topics():
                store.alter_topic(name, {"segment.bytes": SMALL_SEGMENT, "file.delete.delay.ms": DELAY_MS})

    @property
    def workers(self) -> list[Worker]:
        return [*self.producers, *self.consumers]

    def start(self) -> None:
        for worker in self.workers:
            worker.start()

    def stop(self) -> None:
        for some in (self.producers, self.consumers):
            for worker in some:
                worker.stop()
            for worker in some:
                worker.join()


def _flood(store: segstore.Store, name: str, idempotent: bool) -> Worker:
    """As many records to the topic without keys as its buffers take."""
    producer = segstore.Producer(store, enable_idempotence=idempotent, linger_ms=5, client_id=name)
    value = random.Random(name).randbytes(VALUE_BYTES)

    def work() -> int:
        for _ in range(AT_A_TIME):
            producer.send(EVENTS, value)
        return AT_A_TIME

    return Worker(name, work, producer.close)


def _reader(store: segstore.Store, topic: str, **settings: Any) -> Worker:
    consumer = segstore.Consumer(store, topic, auto_offset_reset="earliest", **settings)

    def work() -> int:
        return sum(map(len, consumer.poll(timeout_ms=100, max_records=5000).values()))

    return Worker(f"{topic} reader", work, consumer.close)
