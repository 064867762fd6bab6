"""`Incomplete`: the sealed batches whose outcome is not known yet. It completes batches, and wakes the
threads that wait for them (Kafka: IncompleteBatches).

Threads: any. The methods take the producer's lock. Callbacks run without the lock, in the thread that calls
`complete`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from segstore.client.producer.batch import ProducerBatch
from segstore.client.producer.buffer_pool import BufferPool
from segstore.client.producer.future import run_callback
from segstore.client.producer.lock import ProducerLock
from segstore.errors import KafkaTimeoutError
from segstore.threads import Latch


class Incomplete:
    """The incomplete batches of one producer. `batches` has them in the order in which they were sealed. The
    thread that seals a batch holds the lock, and adds the batch to `batches`.
    """

    def __init__(self, lock: ProducerLock, pool: BufferPool) -> None:
        self._lock, self._pool = lock, pool
        self.batches: dict[ProducerBatch, None] = {}
        # The keys are the ids of the threads that run callbacks.
        self._calling: dict[int, None] = {}

    def complete(self, batches: Sequence[ProducerBatch]) -> None:
        """Complete batches whose outcome is stored: run the batches' callbacks, then wake the threads that
        wait for the batches (in this order, as in Kafka). If an interrupt comes, call `complete` again to do
        the remaining work.
        """
        called: list[Any] = []
        with self._lock:
            for batch in batches:
                if batch.values:
                    batch.forget_records()
                if batch.block:
                    self._pool.give_back(batch)
                # `done` is set after all other attributes, because other threads read it without the lock.
                batch.done = True
            for batch in batches:
                if batch.callbacks:
                    called += batch.callbacks
                    batch.callbacks = None
            if not called:
                self._over(batches)
                return
        try:
            self._call(called)
        finally:
            with self._lock:
                self._over(batches)

    def _over(self, batches: Sequence[ProducerBatch]) -> None:
        """Remove these batches, and wake the threads that wait for them. The caller must hold the lock."""
        for batch in batches:
            if batch.latch is not None:
                batch.latch.open()
            if batch in self.batches:
                del self.batches[batch]

    def _call(self, called: list[Any]) -> None:
        me = threading.get_ident()
        nested = me in self._calling
        # There is no call between the next line and `try`, so no interrupt comes there.
        self._calling[me] = None
        try:
            parts = iter(called)
            for future, callback, errback in zip(parts, parts, parts, strict=True):
                if future._holder.done:
                    run_callback(future, callback, errback)
                else:  # The future's record is not in this batch, and will be in a later one.
                    future._when_done(callback, errback)
        finally:
            if not nested:
                del self._calling[me]

    def in_callback(self) -> bool:
        """Return whether this thread is running callbacks. If so, it must not wait for a batch."""
        return threading.get_ident() in self._calling

    def wait(self, batches: Iterable[ProducerBatch], timeout: float | None) -> None:
        """Wait up to `timeout` seconds until all these batches have an outcome. Raises KafkaTimeoutError."""
        end = None if timeout is None else time.monotonic() + timeout
        for batch in batches:
            latch = self._latch(batch)
            if latch is not None and not latch.wait(None if end is None else end - time.monotonic()):
                raise KafkaTimeoutError(f"not all records were sent within {timeout} s")

    def _latch(self, batch: ProducerBatch) -> Latch | None:
        with self._lock:
            if batch not in self.batches:
                return None
            if batch.latch is None:
                batch.latch = Latch()
            return batch.latch
